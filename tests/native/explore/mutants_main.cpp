// Every deliberate mistake has to be found; fails when one is not, or when it was never made.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "mutants.hpp"
#include "scenarios.hpp"

namespace {

using namespace mo::explore;

struct Verdict {
    const char* scenario = nullptr;  // that found it
    Outcome outcome;
    uint64_t made = 0;
    uint64_t executions = 0;
};

// In the scenario that is expected to find it first, then in all others.
Verdict hunt(const Mutant& mutant, uint64_t most_executions) {
    Verdict verdict;
    Options options;
    options.mutant = &mutant;
    options.most_executions = most_executions;
    for (const bool expected : {true, false}) {
        for (const Scenario& scenario : scenarios()) {
            if (scenario.slow || scenario.must_fail) continue;
            if ((std::strcmp(scenario.name, mutant.found_by) == 0) != expected) continue;
            verdict.outcome = explore(scenario, options);
            verdict.made += verdict.outcome.mutated;
            verdict.executions += verdict.outcome.executions;
            if (!verdict.outcome.failed) continue;
            verdict.scenario = scenario.name;
            return verdict;
        }
    }
    return verdict;
}

}  // namespace

int main(int count, char** arguments) {
    const char* only = count > 1 ? arguments[1] : nullptr;
    bool fine = true;
    for (const Mutant& mutant : mutants()) {
        if (only != nullptr && std::strcmp(only, mutant.name) != 0) continue;
        const auto start = std::chrono::steady_clock::now();
        const Verdict verdict = hunt(mutant, 20'000);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        const char* result = verdict.scenario != nullptr ? verdict.scenario
                             : verdict.made == 0         ? "NEVER MADE"
                                                         : "NOT FOUND";
        std::printf("%-48s %-22s %7" PRIu64 " executions %6.2f s  %s\n", mutant.name, result, verdict.executions, seconds,
                    verdict.outcome.message.c_str());
        std::fflush(stdout);
        if (only != nullptr && verdict.scenario != nullptr) std::printf("%s", verdict.outcome.trace.c_str());
        fine &= verdict.scenario != nullptr;
    }
    for (const Harmless& harmless : harmless_mutants()) {
        if (only != nullptr && std::strcmp(only, harmless.mutant.name) != 0) continue;
        const Verdict verdict = hunt(harmless.mutant, 1'000);
        std::printf("%-50s %s\n", harmless.mutant.name,
                    verdict.scenario != nullptr ? "FOUND, though listed as harmless" : "harmless, as listed");
        std::fflush(stdout);
        fine &= verdict.scenario == nullptr && verdict.made > 0;
    }
    return fine ? 0 : 1;
}
