// Names for the places between two steps of the protocol, where a process may die. They cost nothing in a product build:
// only the tests that kill processes there (tests/native/failpoints) compile them in.
#pragma once

#ifdef MO_FAILPOINTS
namespace mo {
void step(const char* name) noexcept;  // the test's
}
#define MO_STEP(name) ::mo::step(name)
#else
#define MO_STEP(name) static_cast<void>(0)
#endif
