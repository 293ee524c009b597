// Shared words under the C++ memory model, as far as it can be run forwards.
//
// Every word keeps all its stores, in order. A thread has a view: of each word the oldest store that it may still
// read. A release store carries the view of its thread, an acquire load joins it; a relaxed store carries nothing but
// itself. A seq_cst load reads no older than the newest seq_cst store of that word. So a load may find an old value
// wherever the model allows it (x86 does where a store sits in a store buffer, ARM in more cases).
//
// Not modelled: a load that reads a store which its own thread has not yet reached in program order (load buffering).
// That a reader has finished before its memory is written again is therefore checked as a rule: two accesses to
// payload, or the copy of a descriptor that counts and the next store to its cell, have to be ordered.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

namespace mo::explore {

inline constexpr int kActors = 7;    // of a scenario
inline constexpr int kMain = 7;      // set-up, and the checks at the end
inline constexpr int kReapers = 8;   // kReapers + i takes the life of actor i
inline constexpr int kThreads = 16;  // all of those
inline constexpr int kWords = 240;

// How much a thread knows: of words the oldest store that it may read, of threads how much of their life is past.
class View {
  public:
    int16_t& word(int index) { return known_[index]; }
    int16_t& life(int thread) { return known_[kWords + thread]; }
    int16_t life(int thread) const { return known_[kWords + thread]; }
    void join(const View& other) {
        for (size_t i = 0; i < known_.size(); ++i) known_[i] = std::max(known_[i], other.known_[i]);
    }

  private:
    alignas(16) std::array<int16_t, kWords + kThreads> known_{};
};

class Memory {
  public:
    void forget_execution();
    void forget_everything();

    // The number of the word that starts there.
    int index(const void* address, size_t bytes);
    const std::string& kind(int word) { return words_[word].kind; }
    const std::string& name(int word) { return words_[word].name; }

    // How many older stores than the newest a load may read; and who stored the newest, as which of its steps.
    int older(int word, int thread, std::memory_order order);
    int newest_writer(int word) { return words_[word].newest().thread; }
    uint16_t newest_step(int word) { return words_[word].newest().step; }
    uint64_t newest_value(int word) { return words_[word].newest().value; }

    // `age` 0 is the newest store, 1 the one before it.
    uint64_t load(int word, int thread, std::memory_order order, int age);
    void load_block(int word, int thread, void* to, int age);
    void store(int word, int thread, uint16_t step, uint64_t value, std::memory_order order);
    void store_block(int word, int thread, uint16_t step, const void* from);
    // Reads the newest, as read-modify-write operations do.
    bool compare_exchange(int word, int thread, uint16_t step, uint64_t& expected, uint64_t desired,
                          std::memory_order order);
    uint64_t fetch_add(int word, int thread, uint16_t step, uint64_t value, std::memory_order order);

    void fence(int thread, std::memory_order order);
    // A wake, and then a sleep, on the word: what the waker knew, the sleeper knows (the kernel's lock of the queue).
    void leave_kernel(int word, int thread) { words_[word].kernel.join(views_[thread]); }
    void enter_kernel(int word, int thread) { views_[thread].join(words_[word].kernel); }

    void write_payload(const void* address, int thread, uint64_t stamp);
    uint64_t read_payload(const void* address, int thread);
    // The last copy that the thread made of the descriptor that starts there counts.
    void copy_counts(const void* cell, int thread);

    View& view(int thread) { return views_[thread]; }

    // What was broken, since the execution began: "" if nothing.
    const std::string& problem() const { return problem_; }

  private:
    struct Message {
        uint64_t value = 0;
        std::vector<uint8_t> block;
        View released;  // what an acquiring reader gets to know
        View known;     // what its writer knew
        int thread = kMain;
        int16_t life = 0;   // of its writer then
        uint16_t step = 0;  // of its writer, as the search counts
    };
    struct Copy {
        int thread;
        int16_t life;
    };
    struct Word {
        uint8_t* address = nullptr;
        size_t bytes = 8;
        std::string kind;
        std::string name;
        uint32_t execution = 0;
        std::deque<Message> history;  // the first `used`
        size_t used = 0;
        int newest_seq_cst = 0;
        std::array<int16_t, kThreads> last_read{};  // by thread: which store
        std::array<int16_t, kThreads> last_read_life{};
        std::array<bool, kThreads> last_read_ordered{};  // after the store that it read
        std::vector<Copy> counted;
        View kernel;

        Message& newest() { return history[used - 1]; }
        Message& append() {
            if (used == history.size()) history.emplace_back();
            return history[used++];
        }
    };
    struct Payload {
        uint64_t stamp = 0;
        int writer = kMain;
        int16_t writer_life = 0;
        std::array<int16_t, kThreads> reader_life{};
    };

    void begin(Word& word);
    const Message& read(int word, int thread, std::memory_order order, int age);
    Message& write(int word, int thread, uint16_t step, uint64_t value, std::memory_order order);
    void broken(const Word& word, const char* rule);

    std::deque<Word> words_;
    std::unordered_map<const void*, int> indices_;
    std::unordered_map<const void*, Payload> payloads_;
    std::array<View, kThreads> views_{};
    std::array<View, kThreads> unacquired_{};  // of what was read without acquiring it: for a fence
    std::array<View, kThreads> fenced_{};      // what relaxed stores carry after a releasing fence
    uint32_t execution_ = 1;
    std::string problem_;
};

}  // namespace mo::explore
