// Usage: explore [--slow] [--list] [--most EXECUTIONS] [--trace SCENARIO SCHEDULE] [SCENARIO...]
//
// Explores the scenarios that are named, or all that are not slow (with --slow: only those). A broken rule is shown as a
// trace (step, actor, what it did, in which function), with a schedule that --trace runs again.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "scenarios.hpp"

namespace {

using namespace mo::explore;

const Scenario* find(const char* name) {
    for (const Scenario& scenario : scenarios())
        if (std::strcmp(scenario.name, name) == 0) return &scenario;
    return nullptr;
}

bool check(const Scenario& scenario, uint64_t most) {
    const auto start = std::chrono::steady_clock::now();
    Options options;
    options.most_executions = most;
    const Outcome outcome = explore(scenario, options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    char bound[32] = "all";
    if (scenario.most_preemptions >= 0) std::snprintf(bound, sizeof bound, "<=%d", scenario.most_preemptions);
    std::printf("%-26s %-4s %9" PRIu64 " executions, %9" PRIu64 " given up, %8" PRIu64 " old values, %8" PRIu64
                " deaths, up to %3zu steps, %6.2f s%s\n",
                scenario.name, bound, outcome.executions, outcome.redundant, outcome.stale_reads, outcome.deaths,
                outcome.longest, seconds, outcome.exhausted ? "" : outcome.failed ? (scenario.must_fail ? ": fails, as it must" : ": FAILED") : ": NOT EXHAUSTED");
    if (outcome.failed && !scenario.must_fail)
        std::printf("\n%s%s: %s\nschedule: %s\n\n", outcome.trace.c_str(), scenario.name, outcome.message.c_str(),
                    outcome.replay.c_str());
    std::fflush(stdout);
    return scenario.must_fail ? outcome.failed : outcome.exhausted;
}

}  // namespace

int main(int count, char** arguments) {
    bool slow = false;
    uint64_t most = 20'000'000;
    std::vector<const Scenario*> chosen;
    for (int i = 1; i < count; ++i) {
        if (std::strcmp(arguments[i], "--slow") == 0) {
            slow = true;
        } else if (std::strcmp(arguments[i], "--most") == 0 && i + 1 < count) {
            most = std::strtoull(arguments[++i], nullptr, 10);
        } else if (std::strcmp(arguments[i], "--list") == 0) {
            for (const Scenario& scenario : scenarios())
                std::printf("%-24s %s%s\n", scenario.name, scenario.what, scenario.slow ? " (slow)" : "");
            return 0;
        } else if (std::strcmp(arguments[i], "--trace") == 0 && i + 2 < count) {
            const Scenario* scenario = find(arguments[i + 1]);
            if (scenario == nullptr) return 2;
            Options options;
            options.most_executions = 100'000;  // to find out which words are shared
            explore(*scenario, options);
            const Outcome outcome = replay(*scenario, options, arguments[i + 2]);
            std::printf("%s%s\n", outcome.trace.c_str(), outcome.message.c_str());
            return 0;
        } else if (const Scenario* found = find(arguments[i])) {
            chosen.push_back(found);
        } else {
            std::fprintf(stderr, "no scenario is called %s: see --list\n", arguments[i]);
            return 2;
        }
    }
    if (chosen.empty())
        for (const Scenario& scenario : scenarios())
            if (slow == scenario.slow) chosen.push_back(&scenario);
    bool fine = true;
    for (const Scenario* scenario : chosen) fine &= check(*scenario, most);
    return fine ? 0 : 1;
}
