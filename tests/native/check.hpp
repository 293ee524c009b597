// What the native tests check with: a failed check says where and ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                  \
        }                                                                                  \
    } while (false)

// That `expression` throws `Type` with `words` in its message.
#define CHECK_THROWS(expression, Type, words)                                                             \
    do {                                                                                                  \
        bool thrown = false;                                                                              \
        try {                                                                                             \
            static_cast<void>(expression);                                                                \
        } catch (const Type& error) {                                                                     \
            thrown = true;                                                                                \
            if (std::strstr(error.what(), words) == nullptr) {                                            \
                std::fprintf(stderr, "%s:%d: %s says '%s', not '%s'\n", __FILE__, __LINE__, #expression,  \
                             error.what(), words);                                                        \
                std::abort();                                                                             \
            }                                                                                             \
        }                                                                                                 \
        if (!thrown) {                                                                                    \
            std::fprintf(stderr, "%s:%d: %s did not throw %s\n", __FILE__, __LINE__, #expression, #Type); \
            std::abort();                                                                                 \
        }                                                                                                 \
    } while (false)

#define RUN(test)                            \
    do {                                     \
        std::fprintf(stderr, "%s\n", #test); \
        test();                              \
    } while (false)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 8;
#else
inline constexpr int kSlowdown = 1;
#endif

// Fewer rounds under a sanitizer.
inline int rounds(int count) { return count / kSlowdown; }
