// Kills every kind of process at every named step of the protocol (MO_STEP in dataplane/native/core), plays the
// supervisor as docs/dataplane.md says, and checks what is left. A step that one of the processes whose code it is in never
// reaches fails the test.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "rig.hpp"

namespace {

using crash::Result;
using crash::Rig;

std::set<std::string> names_in(const char* folder) {
    std::set<std::string> names;
    const std::regex pattern("MO_STEP\\(\"([^\"]+)\"\\)");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream file(entry.path());
        std::stringstream text;
        text << file.rdbuf();
        const std::string source = text.str();
        for (std::sregex_iterator found(source.begin(), source.end(), pattern), end; found != end; ++found)
            names.insert((*found)[1]);
    }
    return names;
}

constexpr const char* kProcesses[] = {"producer", "block consumer", "drop_oldest consumer", "consumer of two",
                                      "supervisor's helper"};

// Whose code a step is in.
std::vector<int> processes_of(const std::string& name) {
    if (name.starts_with("producer.") || name == "ring.begin.tail_stored" || name.starts_with("harness.payload"))
        return {0};
    if (name.starts_with("consumer.wait.")) return {1, 2};  // for one ring,
    if (name.starts_with("consumer.wait_any.")) return {3};  // and for several
    if (name.starts_with("consumer.") || name.starts_with("harness.marked")) return {1, 2, 3};
    // That is the supervisor itself, whose death nobody survives; the explorer covers what a second one would find.
    if (name.starts_with("supervisor.")) return {};
    return {0, 4};  // of the ring: who ends it, and who rings its bell
}

struct Totals {
    int runs = 0;
    int fired = 0;
    int bad = 0;
    uint64_t lost = 0;
    uint64_t duplicates = 0;
    uint64_t corrupt = 0;
    uint64_t leaked = 0;
    double worst_gap = 0;
    std::vector<double> reclaims;
};

bool run(const std::string& name, int process, uint32_t after, Totals& totals) {
    Rig rig;
    auto& shared = rig.shared();
    std::strncpy(shared.step, name.c_str(), sizeof shared.step - 1);
    shared.step_process = process;
    shared.step_after = after;
    rig.end_by_helper(process == 4);
    if (name.find(".drop.") != std::string::npos) shared.slow_edge = 2;
    rig.start();
    const double start = crash::now_seconds();
    const auto hung = [&] { return rig.failed() || crash::now_seconds() > start + 20; };
    const auto frames = [&](uint64_t more) {
        const uint64_t until = shared.published + more;
        while (!hung() && shared.published < until) rig.turn(1);
    };
    const auto settle = [&] {
        while (!hung() && !rig.settled()) rig.turn(1);
    };
    frames(24);
    // What makes processes pass by the rarer steps.
    const bool by_deaths = name.find(".replace.") != std::string::npos || name.find(".list.") != std::string::npos;
    if (by_deaths) {
        settle();
        rig.kill_consumer(0);
        frames(12);
    }
    if (name.find(".cut.") != std::string::npos) {
        settle();
        rig.hand_over();
        frames(12);
    }
    if (name.find(".dismiss.") != std::string::npos) {
        settle();
        rig.dismiss();
        frames(12);
    }
    if (process == 4) {
        settle();
        rig.kill_producer();
    }
    frames(24);
    settle();
    const bool late = hung();
    const Result result = rig.finish();
    const bool fired = shared.step_fired != 0;
    ++totals.runs;
    totals.fired += fired;
    totals.worst_gap = std::max(totals.worst_gap, result.worst_gap_seconds);
    totals.reclaims.insert(totals.reclaims.end(), result.reclaim_seconds.begin(), result.reclaim_seconds.end());
    totals.lost += result.lost;
    totals.duplicates += result.duplicates;
    totals.corrupt += result.corrupt;
    totals.leaked += result.leaked;
    const bool fine = !late && result.problem.empty() && result.lost == 0 && result.duplicates == 0 && result.corrupt == 0 &&
                      result.leaked == 0 && result.worst_gap_seconds < 10;
    if (!fine) {
        ++totals.bad;
        std::printf("%s, %s, visit %u: %llu lost, %llu twice, %llu corrupt, %llu leaked, gap %.3f s %s%s\n", name.c_str(),
                    kProcesses[process], after, static_cast<unsigned long long>(result.lost),
                    static_cast<unsigned long long>(result.duplicates), static_cast<unsigned long long>(result.corrupt),
                    static_cast<unsigned long long>(result.leaked), result.worst_gap_seconds, result.problem.c_str(), late ? " (not done in time)" : "");
        std::fflush(stdout);
    }
    return fired;
}

bool write_json(const char* path, const Totals& totals, size_t steps, size_t unreached) {
    FILE* file = std::fopen(path, "we");
    if (file == nullptr) return false;
    std::fprintf(file,
                 "{\"kills\": %d, \"runs\": %d, \"steps\": %zu, \"bad\": %d, \"unreached\": %zu, \"lost\": %llu"
                 ", \"duplicates\": %llu, \"corrupt\": %llu, \"leaked\": %llu, \"worst_gap_seconds\": %.6f"
                 ", \"reclaims\": %zu, \"reclaim_p50_seconds\": %.9f, \"reclaim_p99_seconds\": %.9f}\n",
                 totals.fired, totals.runs, steps, totals.bad, unreached, static_cast<unsigned long long>(totals.lost),
                 static_cast<unsigned long long>(totals.duplicates), static_cast<unsigned long long>(totals.corrupt),
                 static_cast<unsigned long long>(totals.leaked), totals.worst_gap, totals.reclaims.size(),
                 crash::quantile(totals.reclaims, 0.5), crash::quantile(totals.reclaims, 0.99));
    return std::fclose(file) == 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (crash::is_worker(count, arguments)) return 0;
    std::set<std::string> names = names_in(MO_CORE_FOLDER);
    names.merge(names_in(MO_RIG_FOLDER));
    const char* json = nullptr;
    for (int i = 1; i < count; ++i) {
        if (std::strcmp(arguments[i], "--json") == 0 && i + 1 < count)
            json = arguments[++i];
        else
            names = {arguments[i]};
    }
    Totals totals;
    std::vector<std::string> unreached;
    for (const std::string& name : names) {
        for (const int process : processes_of(name)) {
            bool fired = false;
            for (const uint32_t after : {1u, 6u}) fired |= run(name, process, after, totals);
            if (!fired) unreached.push_back(std::string(kProcesses[process]) + ": " + name);
        }
    }
    std::printf("%zu steps, %d runs, %d of them with a death there, %d bad; worst gap at a survivor %.1f ms, worst "
                "reclaim %.3f ms\n",
                names.size(), totals.runs, totals.fired, totals.bad, totals.worst_gap * 1e3,
                crash::quantile(totals.reclaims, 1) * 1e3);
    for (const std::string& pair : unreached) std::printf("never reached by the %s\n", pair.c_str());
    if (json != nullptr && !write_json(json, totals, names.size(), unreached.size())) return 2;
    return totals.bad == 0 && unreached.empty() ? 0 : 1;
}
