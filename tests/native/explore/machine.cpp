#include "machine.hpp"

#include <setjmp.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "arena.hpp"
#include "fake_memory.hpp"
#include "fiber.hpp"
#include "futex.hpp"
#include "memory.hpp"
#include "search.hpp"
#include "seam.hpp"

namespace mo::explore {
namespace {

constexpr int kChannels = 16;
constexpr size_t kMostSteps = 4000;

// The things that steps touch: words first, then these.
constexpr int kQueue = kWords;              // + word * kActors + sleeper: that it is asleep on the word
constexpr int kLife = kQueue + kWords * kActors;  // + actor: whether its steps still happen
constexpr int kGone = kLife + kActors;      // + actor: whether it has finished or died
constexpr int kChannel = kGone + kActors;   // + channel
constexpr int kDeaths = kChannel + kChannels;  // how many may still die
constexpr int kFence = kDeaths + 1;  // sequentially consistent fences have an order of their own
constexpr int kThings = kFence + 1;

enum class Act { load, store, cas, add, fence, sleep, resume, wake, send, receive, peek, end, finish, die };

const char* name_of(Act act) {
    constexpr const char* names[] = {"load", "store",   "cas",  "add",   "fence",  "sleep", "wake-up",
                                     "wake", "send",    "receive", "peek", "await", "finish", "SIGKILL"};
    return names[static_cast<int>(act)];
}

struct SleepWord {
    int word;
    uint32_t seen;
};

// Few, and without memory of its own: steps lie on stacks that are given up.
class SleepWords {
  public:
    void push_back(SleepWord word) {
        if (count_ == words_.size()) std::abort();
        words_[count_++] = word;
    }
    const SleepWord* begin() const { return words_.data(); }
    const SleepWord* end() const { return words_.data() + count_; }

  private:
    std::array<SleepWord, 8> words_{};
    size_t count_ = 0;
};

struct Step {
    Act act;
    std::memory_order order = std::memory_order_seq_cst;
    int word = -1;
    int target = -1;          // actor or channel
    uint64_t value = 0;       // to store, add or send; found by load, add and receive
    uint64_t expected = 0;    // of a compare-and-swap; found
    bool swapped = false;
    uint8_t* block = nullptr;  // to copy into or from, instead of `value`
    const char* function = "";
    unsigned line = 0;
    SleepWords sleep_words;
    Footprint footprint;
};

struct Actor {
    const char* name = "";
    std::function<void()> body;
    bool mortal = false;
    bool finished = false;
    bool dead = false;
    bool asleep = false;
    Step* pending = nullptr;
    Step resume;
    Step finish;
    Step death;
    SleepWords sleeps_on;
    Mask woken = 0;  // by its last step
    const char* last_function = "";  // for wakes, which do not say who makes them
    unsigned last_line = 0;
    std::array<uint64_t, kWords> last_loaded{};  // for the mutants that leave a load out
    std::array<bool, kWords> has_loaded{};
    bool delaying = false;
    Step delayed;
    std::vector<uint8_t> delayed_block;

    bool gone() const { return finished || dead; }
};

class Machine {
  public:
    Outcome explore(const Scenario& scenario, const Options& options);
    Outcome replay(const Scenario& scenario, const Options& options, const std::string& schedule);

    void access(Step& step, const void* address, size_t bytes);
    void step(Step& step);
    void sleep_on(Step& step, const void* address, uint32_t seen);
    [[noreturn]] void fail_here(const char* message);
    void check_memory();

    int add_actor(const char* name, std::function<void()> body, bool mortal);
    void set_deaths(unsigned most) { deaths_left_ = most; }
    void add_check(std::function<void()> check) { checks_.push_back(std::move(check)); }
    int add_channel();
    Memory& memory() { return memory_; }
    int running() const { return running_; }
    bool is_dead(int actor) const { return actors_[actor].dead; }
    bool channel_empty(int channel) const { return channels_[channel].empty(); }

  private:
    void run(const Scenario& scenario);
    void begin();
    void protect(const std::function<void()>& body);
    void enter(int actor);
    bool loop();
    Mask enabled() const;
    void pending(std::array<const Footprint*, kThreads>& footprints);
    void report_deadlock();
    void do_step(int thread, Step& step);
    void perform(int thread, Step& step, int age);
    int choices(int thread, const Step& step);
    int values(int thread, int word, std::memory_order order);
    void perform_sleep(int thread, Step& step, int choice);
    void perform_wake(int thread, const Step& step);
    void kill(int actor);
    void footprint(int thread, Step& step);
    bool is_visible(int word, int thread, bool write);

    bool mutate(Step& step);
    bool matches(const Step& step, const char* access) const;
    void after_mutant(const Step& step);

    void fail(const std::string& message);
    void note(int thread, const Step& step, int age);
    std::string describe_step(const Step& step, int age) const;

    Memory memory_;
    Search search_{kThings};
    Options options_;
    bool tracing_ = false;
    struct Use {
        Mask threads = 0;
        bool written = false;
        bool visible = false;
    };
    std::array<Use, kWords> uses_{};
    Outcome outcome_;

    std::array<Actor, kActors> actors_;
    int actor_count_ = 0;
    unsigned mortals_ = 0;
    unsigned deaths_left_ = 1;
    std::array<Fiber, kActors> fibers_;
    std::vector<std::function<void()>> checks_;
    std::array<std::deque<std::pair<uint64_t, View>>, kChannels> channels_;
    int channel_count_ = 0;
    int running_ = kMain;
    jmp_buf main_;
    bool failed_ = false;
    bool restart_ = false;
    unsigned stale_ = 0;
    std::string message_;
    std::vector<std::string> trace_;
};

Machine machine;


// -- one execution ------------------------------------------------------------------------------------------

void Machine::begin() {
    for (int i = 0; i < actor_count_; ++i) {
        Actor& actor = actors_[i];
        std::memset(static_cast<void*>(&actor.body), 0, sizeof actor.body);  // lay in the arena
        actor.has_loaded.fill(false);
        actor.finished = actor.dead = actor.asleep = actor.mortal = actor.delaying = false;
        actor.pending = nullptr;
        actor.last_function = "";
    }
    new (&checks_) std::vector<std::function<void()>>();  // the same
    forget_arena();
    forget_files();
    memory_.forget_execution();
    search_.begin_execution();
    actor_count_ = 0;
    mortals_ = 0;
    deaths_left_ = 1;
    for (auto& channel : channels_) channel.clear();
    channel_count_ = 0;
    running_ = kMain;
    failed_ = restart_ = false;
    stale_ = 0;
    message_.clear();
    trace_.clear();
}

// Scenario code in the scheduler's own context.
void Machine::protect(const std::function<void()>& body) {
    if (_setjmp(main_) != 0) {
        set_inside(false);
        return;
    }
    set_inside(true);
    try {
        body();
    } catch (const std::exception& error) {
        set_inside(false);
        fail(std::string("unexpected outside the actors: ") + error.what());
    }
    set_inside(false);
}


void Machine::run(const Scenario& scenario) {
    begin();
    protect([&] {
        World world;
        scenario.make(world);
    });
    if (failed_) return;
    for (int i = 0; i < actor_count_; ++i) {
        memory_.view(i) = memory_.view(kMain);
        enter(i);
        if (failed_ || restart_) return;
    }
    if (!loop() || failed_ || restart_) return;
    ++outcome_.executions;
    for (int i = 0; i < actor_count_; ++i) memory_.view(kMain).join(memory_.view(i));
    for (size_t i = 0; i < checks_.size() && !failed_; ++i) protect(checks_[i]);
}

void Machine::enter(int actor) {
    running_ = actor;
    set_inside(true);
    fibers_[actor].enter();
    set_inside(false);
    running_ = kMain;
}

Mask Machine::enabled() const {
    Mask mask = 0;
    for (int i = 0; i < actor_count_; ++i) {
        const Actor& actor = actors_[i];
        if (actor.gone()) continue;
        if (actor.mortal && deaths_left_ > 0) mask |= bit(kReapers + i);
        if (actor.asleep) continue;
        const Step& step = *actor.pending;
        if (step.act == Act::receive && channels_[step.target].empty()) continue;
        if (step.act == Act::end && !actors_[step.target].gone()) continue;
        mask |= bit(i);
    }
    return mask;
}

void Machine::pending(std::array<const Footprint*, kThreads>& footprints) {
    footprints.fill(nullptr);
    for (int i = 0; i < actor_count_; ++i) {
        Actor& actor = actors_[i];
        if (!actor.gone()) footprints[i] = &actor.pending->footprint;
        if (actor.mortal && !actor.dead) footprints[kReapers + i] = &actor.death.footprint;
    }
}

// False when it was given up.
bool Machine::loop() {
    std::array<const Footprint*, kThreads> footprints;
    for (;;) {
        bool all_gone = true;
        for (int i = 0; i < actor_count_; ++i) all_gone &= actors_[i].gone();
        const Mask mask = enabled();
        pending(footprints);
        if (all_gone) break;
        if ((mask & (bit(kActors) - 1)) == 0) {
            report_deadlock();
            return false;
        }
        if (search_.depth() == kMostSteps) {
            // Reading old values again and again is no fault of the code's.
            if (stale_ == 0) fail("does not end");
            ++outcome_.redundant;
            search_.finish(footprints);
            return false;
        }
        const int thread = search_.next(mask, footprints);
        if (thread < 0) {
            ++outcome_.redundant;
            search_.finish(footprints);
            return false;
        }
        if (thread >= kReapers)
            kill(thread - kReapers);
        else
            do_step(thread, *actors_[thread].pending);
        if (failed_ || restart_) return false;
    }
    outcome_.longest = std::max(outcome_.longest, search_.depth());
    search_.finish(footprints);
    return true;
}

void Machine::report_deadlock() {
    std::string text = "nobody can go on:";
    for (int i = 0; i < actor_count_; ++i) {
        const Actor& actor = actors_[i];
        text += std::string(" ") + actor.name;
        if (actor.dead) text += " is dead,";
        else if (actor.finished) text += " has finished,";
        else if (actor.asleep) {
            text += " sleeps on";
            for (const SleepWord& word : actor.sleeps_on) text += " " + memory_.name(word.word);
            text += ",";
        } else text += " waits for a message or an end,";
    }
    text.back() = '.';
    fail(text);
}

void Machine::kill(int actor) {
    Actor& victim = actors_[actor];
    victim.dead = true;
    --deaths_left_;
    ++outcome_.deaths;
    search_.choose(1);
    if (tracing_) note(kReapers + actor, victim.death, 0);
    search_.done(kReapers + actor, victim.death.footprint);
}

void Machine::do_step(int thread, Step& step) {
    const int age = search_.choose(choices(thread, step));
    perform(thread, step, age);
    if (age > 0) {
        ++stale_;
        ++outcome_.stale_reads;
    }
    if (tracing_) note(thread, step, age);
    search_.done(thread, step.footprint);
    Actor& actor = actors_[thread];
    for (; actor.woken != 0; actor.woken &= actor.woken - 1) search_.woke(thread, std::countr_zero(actor.woken));
    check_memory();
    if (step.act == Act::finish) {
        actor.finished = true;
        return;
    }
    if (!actor.asleep && !failed_) enter(thread);
}

// A load has the choice of older values, unless another order of the steps gives the same: it does when the newest
// store could as well have come after the load.
int Machine::values(int thread, int word, std::memory_order order) {
    if (stale_ >= options_.most_stale_reads) return 1;
    const int writer = memory_.newest_writer(word);
    if (writer == thread) return 1;
    if (writer < kActors && !search_.before(writer, memory_.newest_step(word), thread)) return 1;
    return 1 + memory_.older(word, thread, order);
}

int Machine::choices(int thread, const Step& step) {
    if (step.act == Act::load) return values(thread, step.word, step.order);
    int product = 1;
    if (step.act == Act::sleep) {
        for (const SleepWord& word : step.sleep_words) {
            memory_.enter_kernel(word.word, thread);
            product *= values(thread, word.word, std::memory_order_seq_cst);
        }
    }
    return product;
}

void Machine::perform(int thread, Step& step, int age) {
    // As the search will count this step, if it is one.
    const auto number = static_cast<uint16_t>(search_.step_of(thread) + 1);
    switch (step.act) {
        case Act::load:
            if (step.block != nullptr)
                memory_.load_block(step.word, thread, step.block, age);
            else
                step.value = memory_.load(step.word, thread, step.order, age);
            break;
        case Act::store:
            if (step.block != nullptr)
                memory_.store_block(step.word, thread, number, step.block);
            else
                memory_.store(step.word, thread, number, step.value, step.order);
            break;
        case Act::cas:
            step.swapped =
                memory_.compare_exchange(step.word, thread, number, step.expected, step.value, step.order);
            break;
        case Act::add:
            step.value = memory_.fetch_add(step.word, thread, number, step.value, step.order);
            break;
        case Act::fence: memory_.fence(thread, step.order); break;
        case Act::sleep: perform_sleep(thread, step, age); break;
        case Act::wake: perform_wake(thread, step); break;
        case Act::send: channels_[step.target].push_back({step.value, memory_.view(thread)}); break;
        case Act::receive:
            step.value = channels_[step.target].front().first;
            memory_.view(thread).join(channels_[step.target].front().second);
            channels_[step.target].pop_front();
            break;
        case Act::end: memory_.view(thread).join(memory_.view(step.target)); break;
        case Act::peek: case Act::resume: case Act::finish: case Act::die: break;
    }
}

// Compares and falls asleep in one step: a wake comes before (and then its stores are seen here) or finds us asleep.
// But a store that nobody woke for may still be in another core's store buffer.
void Machine::perform_sleep(int thread, Step& step, int choice) {
    bool equal = true;
    for (const SleepWord& word : step.sleep_words) {
        const int number = values(thread, word.word, std::memory_order_seq_cst);
        const uint64_t found = memory_.load(word.word, thread, std::memory_order_relaxed, choice % number);
        equal &= static_cast<uint32_t>(found) == word.seen;
        choice /= number;
    }
    if (!equal) return;
    Actor& actor = actors_[thread];
    actor.asleep = true;
    actor.sleeps_on = step.sleep_words;
    actor.pending = &actor.resume;
}

void Machine::perform_wake(int thread, const Step& step) {
    memory_.leave_kernel(step.word, thread);
    for (int i = 0; i < actor_count_; ++i) {
        Actor& actor = actors_[i];
        if (!actor.asleep || actor.dead) continue;
        for (const SleepWord& word : actor.sleeps_on) {
            if (word.word != step.word) continue;
            actor.asleep = false;
            actors_[thread].woken |= bit(i);
            break;
        }
    }
}

// -- from the fibers ----------------------------------------------------------------------------------------

void Machine::footprint(int thread, Step& step) {
    Footprint& touched = step.footprint;
    touched.clear();
    bool effect = true;  // that others could notice
    switch (step.act) {
        case Act::load:
            touched.add(step.word, false);
            effect = false;
            break;
        case Act::store: case Act::cas: case Act::add: touched.add(step.word, true); break;
        case Act::fence: touched.add(kFence, true); break;
        case Act::sleep:
            for (const SleepWord& word : step.sleep_words) {
                touched.add(word.word, false);
                touched.add(kQueue + word.word * kActors + thread, true);
            }
            effect = false;
            break;
        case Act::wake:
            for (int other = 0; other < actor_count_; ++other)
                if (other != thread) touched.add(kQueue + step.word * kActors + other, false);
            break;
        case Act::send: case Act::receive: touched.add(kChannel + step.target, true); break;
        case Act::peek:
            touched.add(kChannel + step.target, false);
            effect = false;
            break;
        case Act::end:
            touched.add(kGone + step.target, false);
            effect = false;
            break;
        case Act::finish: touched.add(kGone + thread, true); break;
        case Act::resume: case Act::die: effect = false; break;
    }
    if (effect && actors_[thread].mortal) touched.add(kLife + thread, false);
}

// Words that one actor alone uses, or that nobody stores, need no steps. What is shared is found out on the way; then
// the search starts again.
bool Machine::is_visible(int word, int thread, bool write) {
    Use& use = uses_[static_cast<size_t>(word)];
    use.threads |= bit(thread);
    use.written |= write;
    if (!use.visible && use.written && (use.threads & (use.threads - 1)) != 0) use.visible = restart_ = true;
    return use.visible;
}

void Machine::access(Step& step, const void* address, size_t bytes) {
    const Outside outside;
    step.word = memory_.index(address, bytes);
    if (running_ == kMain) {
        perform(kMain, step, 0);
        return;
    }
    this->step(step);
}

void Machine::sleep_on(Step& step, const void* address, uint32_t seen) {
    const Outside outside;
    const int word = memory_.index(address, 8);
    step.sleep_words.push_back({word, seen});
    is_visible(word, running_, false);
}

// Whoever runs does this when the scheduler says so, or at once where nobody can notice when.
void Machine::step(Step& step) {
    const Outside outside;
    const int thread = running_;
    if (thread == kMain) {
        perform(kMain, step, 0);
        return;
    }
    Actor& actor = actors_[thread];
    if (step.act == Act::wake) {
        step.function = actor.last_function;
        step.line = actor.last_line;
    } else if (*step.function != 0) {
        actor.last_function = step.function;
        actor.last_line = step.line;
    }
    if (options_.mutant != nullptr && !mutate(step)) return;
    const bool on_word = step.act == Act::load || step.act == Act::store || step.act == Act::cas || step.act == Act::add;
    const bool local = step.act == Act::fence && step.order != std::memory_order_seq_cst;
    const bool visible = !local && (!on_word || is_visible(step.word, thread, step.act != Act::load));
    if (restart_) fibers_[thread].leave();
    if (visible) {
        footprint(thread, step);
        actor.pending = &step;
        fibers_[thread].leave();
        set_inside(false);  // the scheduler does not know that this is our own code
    } else {
        perform(thread, step, 0);
        check_memory();
    }
    if (step.act == Act::load && step.block == nullptr) {
        actor.last_loaded[step.word] = step.value;
        actor.has_loaded[step.word] = true;
    }
    if (options_.mutant != nullptr) after_mutant(step);
}

void Machine::check_memory() {
    if (memory_.problem().empty() || failed_) return;
    fail(memory_.problem());
    if (running_ != kMain) fibers_[running_].leave();
}

void Machine::fail_here(const char* message) {
    {
        const Outside outside;
        fail(message);
    }
    if (running_ == kMain) _longjmp(main_, 1);
    fibers_[running_].leave();
    std::abort();
}

void Machine::fail(const std::string& message) {
    if (failed_) return;
    failed_ = true;
    message_ = message.c_str();  // a copy of our own, not the arena's
}

int Machine::add_actor(const char* name, std::function<void()> body, bool mortal) {
    if (actor_count_ == kActors) std::abort();
    const int index = actor_count_++;
    Actor& actor = actors_[index];
    actor.name = name;
    new (&actor.body) std::function<void()>(std::move(body));
    actor.mortal = mortal;
    actor.resume.act = Act::resume;
    actor.finish.act = Act::finish;
    actor.death.act = Act::die;
    if (mortal) {
        ++mortals_;
        Footprint& touched = actor.death.footprint;
        touched.clear();
        touched.add(kLife + index, true);
        touched.add(kGone + index, true);
        touched.add(kDeaths, true);
    }
    const auto entry = [](unsigned self) {
        Actor& actor = machine.actors_[self];
        try {
            actor.body();
        } catch (const std::exception& error) {
            machine.fail_here((std::string("unexpected: ") + error.what()).c_str());
        }
        machine.step(actor.finish);
        machine.fail_here("a finished actor went on");
    };
    fibers_[index].prepare(entry, static_cast<unsigned>(index));
    return index;
}

int Machine::add_channel() {
    if (channel_count_ == kChannels) std::abort();
    return channel_count_++;
}

// -- mutants ------------------------------------------------------------------------------------------------

// "store ring.tail", "sleep".
bool Machine::matches(const Step& step, const char* access) const {
    const char* name = name_of(step.act);
    const size_t length = std::strlen(name);
    if (std::strncmp(access, name, length) != 0) return false;
    if (access[length] == 0) return true;
    return access[length] == ' ' && step.word >= 0 &&
           const_cast<Memory&>(memory_).kind(step.word) == access + length + 1;
}

// False when the step is not to be made (now).
bool Machine::mutate(Step& step) {
    const Mutant& mutant = *options_.mutant;
    Actor& actor = actors_[running_];
    if (actor.delaying && step.act == Act::sleep && matches(step, mutant.until)) {
        actor.delaying = false;
        Step late = actor.delayed;
        this->step(late);
    }
    if (!matches(step, mutant.access) || std::strstr(step.function, mutant.function) == nullptr) return true;
    if (mutant.kind == Mutant::Kind::skip && step.act == Act::load && !actor.has_loaded[step.word]) return true;
    ++outcome_.mutated;
    switch (mutant.kind) {
        case Mutant::Kind::order: step.order = mutant.order; return true;
        case Mutant::Kind::skip:
            if (step.act == Act::load) step.value = actor.last_loaded[step.word];
            return false;
        case Mutant::Kind::delay:
            if (actor.delaying) return true;
            actor.delaying = true;
            actor.delayed = step;
            if (step.block != nullptr) {
                actor.delayed_block.assign(step.block, step.block + sizeof(mo_descriptor) - 8);
                actor.delayed.block = actor.delayed_block.data();
            }
            actor.delayed.function = "";  // not to be delayed again
            return false;
    }
    return true;
}

void Machine::after_mutant(const Step& step) {
    Actor& actor = actors_[running_];
    if (!actor.delaying || !matches(step, options_.mutant->until)) return;
    actor.delaying = false;
    Step late = actor.delayed;
    this->step(late);
}

// -- the search ---------------------------------------------------------------------------------------------

Outcome Machine::explore(const Scenario& scenario, const Options& options) {
    options_ = options;
    outcome_ = Outcome();
    memory_.forget_everything();
    uses_.fill(Use());
    search_.forget_everything(scenario.most_preemptions);
    tracing_ = false;
    for (;;) {
        run(scenario);
        if (failed_) break;
        if (restart_) {
            search_.forget_everything(scenario.most_preemptions);
            outcome_ = Outcome();
            continue;
        }
        if (!search_.advance()) {
            outcome_.exhausted = true;
            break;
        }
        if (outcome_.executions + outcome_.redundant >= options.most_executions) break;
    }
    if (!failed_) return outcome_;
    const Outcome found = outcome_;
    Outcome shown = replay(scenario, options, search_.schedule());
    shown.executions = found.executions;
    shown.redundant = found.redundant;
    shown.mutated = found.mutated;
    return shown;
}

Outcome Machine::replay(const Scenario& scenario, const Options& options, const std::string& schedule) {
    options_ = options;
    std::vector<std::pair<int, int>> forced;
    for (size_t i = 0; i < schedule.size();) {
        const int thread = schedule[i++] - 'a';
        int choice = 0;
        while (i < schedule.size() && schedule[i] >= '0' && schedule[i] <= '9') choice = choice * 10 + schedule[i++] - '0';
        forced.emplace_back(thread, choice);
    }
    // What is shared has to be known, as it was when the schedule was written down: a first round finds it out.
    const std::string wanted = schedule;
    tracing_ = true;
    do {
        outcome_ = Outcome();
        search_.forget_everything();
        search_.force(forced);
        run(scenario);
    } while (restart_ && !failed_);
    tracing_ = false;
    Outcome result = outcome_;
    result.failed = failed_;
    result.message = message_;
    result.replay = wanted;
    for (const std::string& line : trace_) result.trace += line + "\n";
    return result;
}

// -- traces -------------------------------------------------------------------------------------------------

std::string number_text(uint64_t value) {
    if (value == MO_UNKNOWN_U64) return "unknown";
    return std::to_string(value);
}

const char* order_text(std::memory_order order) {
    switch (order) {
        case std::memory_order_relaxed: return "relaxed";
        case std::memory_order_release: return "release";
        case std::memory_order_acquire: return "acquire";
        case std::memory_order_acq_rel: return "acq_rel";
        default: return "seq_cst";
    }
}

std::string Machine::describe_step(const Step& step, int age) const {
    Memory& memory = const_cast<Memory&>(memory_);
    std::string text = name_of(step.act);
    if (step.word >= 0) text += " " + memory.name(step.word);
    switch (step.act) {
        case Act::load:
            text += step.block != nullptr ? " (copied)" : " is " + number_text(step.value);
            if (age > 0) text += ", OLD BY " + std::to_string(age);
            break;
        case Act::store: text += step.block != nullptr ? " (copied)" : " = " + number_text(step.value); break;
        case Act::cas:
            text += step.swapped ? " = " + number_text(step.value) : " fails, is " + number_text(step.expected);
            break;
        case Act::add: text += " was " + number_text(step.value); break;
        case Act::sleep:
            for (const SleepWord& word : step.sleep_words)
                text += " " + memory.name(word.word) + " if " + std::to_string(word.seen);
            break;
        case Act::send: case Act::receive: text += " " + number_text(step.value); break;
        case Act::end: text += std::string(" ") + actors_[step.target].name; break;
        default: break;
    }
    if (step.act <= Act::add && step.order != std::memory_order_seq_cst)
        text += std::string(" (") + order_text(step.order) + ")";
    return text;
}

// "std::optional<ReadSlot> mo::Consumer::try_take()" -> "Consumer::try_take".
std::string short_function(const char* function) {
    std::string text = function;
    const size_t parameters = text.find('(');
    if (parameters != std::string::npos) text.resize(parameters);
    const size_t space = text.rfind(' ');
    if (space != std::string::npos) text.erase(0, space + 1);
    if (text.rfind("mo::", 0) == 0) text.erase(0, 4);
    return text;
}

void Machine::note(int thread, const Step& step, int age) {
    const char* name = thread >= kReapers ? actors_[thread - kReapers].name : actors_[thread].name;
    std::string what = describe_step(step, age);
    if (step.act == Act::sleep) {
        if (age > 0) what += ", OLD VALUES";
        if (!actors_[thread].asleep) what += ": no";
    }
    char line[400];
    std::snprintf(line, sizeof line, "%4zu  %-12s %-58s %s", search_.depth(), name, what.c_str(),
                  short_function(step.function).c_str());
    trace_.push_back(line);
}

}  // namespace

// -- the seam -----------------------------------------------------------------------------------------------

namespace {

Step step_of(Act act, const std::source_location& site, std::memory_order order) {
    Step step;
    step.act = act;
    step.order = order;
    step.function = site.function_name();
    step.line = site.line();
    return step;
}

}  // namespace

uint64_t load(const void* word, size_t bytes, std::memory_order order, const std::source_location& site) noexcept {
    Step step = step_of(Act::load, site, order);
    machine.access(step, word, bytes);
    return step.value;
}

void store(void* word, size_t bytes, uint64_t value, std::memory_order order,
           const std::source_location& site) noexcept {
    Step step = step_of(Act::store, site, order);
    step.value = value;
    machine.access(step, word, bytes);
}

bool compare_exchange(void* word, size_t bytes, uint64_t& expected, uint64_t desired,
                      const std::source_location& site) noexcept {
    Step step = step_of(Act::cas, site, std::memory_order_seq_cst);
    step.expected = expected;
    step.value = desired;
    machine.access(step, word, bytes);
    expected = step.expected;
    return step.swapped;
}

uint64_t fetch_add(void* word, size_t bytes, uint64_t value, const std::source_location& site) noexcept {
    Step step = step_of(Act::add, site, std::memory_order_seq_cst);
    step.value = value;
    machine.access(step, word, bytes);
    return step.value;
}

void fence(std::memory_order order, const std::source_location& site) noexcept {
    Step step = step_of(Act::fence, site, order);
    machine.step(step);
}

void store_block(void* to, const void* from, size_t bytes, const std::source_location& site) noexcept {
    Step step = step_of(Act::store, site, std::memory_order_relaxed);
    step.block = static_cast<uint8_t*>(const_cast<void*>(from));
    machine.access(step, to, bytes);
}

void load_block(void* to, const void* from, size_t bytes, const std::source_location& site) noexcept {
    Step step = step_of(Act::load, site, std::memory_order_relaxed);
    step.block = static_cast<uint8_t*>(to);
    machine.access(step, from, bytes);
}

// -- for scenarios ------------------------------------------------------------------------------------------

Outcome explore(const Scenario& scenario, const Options& options) { return machine.explore(scenario, options); }
Outcome replay(const Scenario& scenario, const Options& options, const std::string& schedule) {
    return machine.replay(scenario, options, schedule);
}

int World::actor(const char* name, std::function<void()> body) {
    return machine.add_actor(name, std::move(body), false);
}
int World::mortal(const char* name, std::function<void()> body) {
    return machine.add_actor(name, std::move(body), true);
}
void World::deaths(unsigned most) { machine.set_deaths(most); }
void World::at_end(std::function<void()> check) { machine.add_check(std::move(check)); }

void fail(const std::string& message) { machine.fail_here(message.c_str()); }

void write_payload(uint8_t* slot, uint64_t stamp) {
    {
        const Outside outside;
        machine.memory().write_payload(slot, machine.running(), stamp);
    }
    machine.check_memory();
}

uint64_t read_payload(const uint8_t* slot) {
    uint64_t stamp;
    {
        const Outside outside;
        stamp = machine.memory().read_payload(slot, machine.running());
    }
    machine.check_memory();
    return stamp;
}

void copy_counts(const void* cell) {
    {
        const Outside outside;
        machine.memory().copy_counts(cell, machine.running());
    }
    machine.check_memory();
}

bool wait_for_end(int actor) {
    Step step;
    step.act = Act::end;
    step.target = actor;
    machine.step(step);
    return machine.is_dead(actor);
}

Channel::Channel() : id_(machine.add_channel()) {}

void Channel::send(uint64_t message) {
    Step step;
    step.act = Act::send;
    step.target = id_;
    step.value = message;
    machine.step(step);
}

uint64_t Channel::receive() {
    Step step;
    step.act = Act::receive;
    step.target = id_;
    machine.step(step);
    return step.value;
}

bool Channel::empty() const {
    Step step;
    step.act = Act::peek;
    step.target = id_;
    machine.step(step);
    return machine.channel_empty(id_);
}

}  // namespace mo::explore

// -- futex.hpp ----------------------------------------------------------------------------------------------

namespace mo {

void WaitSet::sleep(int64_t) const {
    explore::Step step;
    step.act = explore::Act::sleep;
    for (const Word& word : words_) explore::machine.sleep_on(step, word.word, word.seen);
    explore::machine.step(step);
}

void futex_wake(const uint32_t& word) noexcept {
    explore::Step step;
    step.act = explore::Act::wake;
    explore::machine.access(step, &word, 8);
}

bool have_futex_waitv() noexcept { return true; }
void pretend_no_futex_waitv(bool) noexcept {}

}  // namespace mo
