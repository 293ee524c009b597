// The explorer: runs actors over the real core through every interleaving that makes a difference, under the C++
// memory model, and reports the first one that breaks a rule.
//
// Every access to a shared word (seam.hpp) is a step. The search is depth-first with replay from the start, reduced by
// dynamic partial orders (races between steps on the same word say where to try another order) and sleep sets. A load
// that need not see the newest store may read an older one: that too is a branch. Death of an actor is a step of its
// reaper. Sleeps have no time-out, so a lost wake-up ends as a deadlock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ring.h"

namespace mo::explore {

class World;

struct Scenario {
    const char* name;
    const char* what;
    void (*make)(World&);
    int most_preemptions = -1;  // negative: no bound, everything
    bool slow = false;
    bool must_fail = false;  // a rule of the protocol is broken on purpose: the explorer has to see it
};

// One deliberate mistake, made at the seam: the explored code stays as it is.
struct Mutant {
    enum class Kind {
        order,  // the access has this order instead of its own
        skip,   // the access does not happen: a store or wake is left out, a load returns what it found the last time
        delay,  // the store happens after the actor's next `until` (before it, where that is a sleep)
    };
    const char* name;
    Kind kind;
    const char* function;  // part of the name of the function that makes the access
    const char* access;    // as in traces, without numbers: "store ring.tail", "load cell.sequence", "wake page.acked"
    std::memory_order order = std::memory_order_relaxed;
    const char* until = "";
    const char* found_by = "";  // the scenario to try first
};

struct Options {
    uint64_t most_executions = 5'000'000;
    unsigned most_stale_reads = 4;  // in one execution
    const Mutant* mutant = nullptr;
};

struct Outcome {
    bool failed = false;
    bool exhausted = false;  // everything was explored
    std::string message;
    std::string trace;
    std::string replay;
    uint64_t executions = 0;  // that ran to their end
    uint64_t redundant = 0;   // that were given up as repeating others
    uint64_t stale_reads = 0;
    uint64_t deaths = 0;
    uint64_t mutated = 0;  // how often the mutant did its mistake
    size_t longest = 0;    // steps
};

Outcome explore(const Scenario& scenario, const Options& options);
// One execution, as in Outcome::replay.
Outcome replay(const Scenario& scenario, const Options& options, const std::string& schedule);

// -- for scenarios ------------------------------------------------------------------------------------------

class World {
  public:
    // At most seven. Bodies may use everything that lives as long as the execution.
    int actor(const char* name, std::function<void()> body);
    // The same, and it may die by SIGKILL between any two of its steps.
    int mortal(const char* name, std::function<void()> body);
    // How many of the mortals may die in one execution: one unless said otherwise.
    void deaths(unsigned most);
    // After every actor has finished or died.
    void at_end(std::function<void()> check);
};

// Ends the execution as a failure.
[[noreturn]] void fail(const std::string& message);
#define EXPECT(condition)                                                                               \
    do {                                                                                                \
        if (!(condition)) mo::explore::fail(std::string("not true: " #condition " (line ") +            \
                                            std::to_string(__LINE__) + ")");                            \
    } while (false)

// Payload: plain memory, so two accesses that nothing orders are a failure by themselves.
void write_payload(uint8_t* slot, uint64_t stamp);
uint64_t read_payload(const uint8_t* slot);
// The last copy of this descriptor that the actor made counts: the store it came from must happen before it, and the
// next store to the cell after it.
void copy_counts(const void* cell);

// Until the actor is gone: its pidfd has become readable. Returns whether it was killed (or finished).
bool wait_for_end(int actor);

// A control message: kept until it is received, and ordered like what goes through a socket.
class Channel {
  public:
    Channel();
    void send(uint64_t message);
    uint64_t receive();  // waits for one
    bool empty() const;  // a peek; a step too

  private:
    int id_;
};

}  // namespace mo::explore
