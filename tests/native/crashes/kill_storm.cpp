// Usage: kill_storm [--kills N] [--seed N] [--json FILE]
//
// Kills producers and consumers (several at once, too) at random times under a running stream of checksummed frames, and
// counts what the ring's contract does not allow.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <random>

#include "rig.hpp"

namespace {

using crash::quantile;
using crash::Result;

void write_json(FILE* file, const Result& result, uint64_t kills, uint64_t seed, double seconds) {
    std::fprintf(file,
                 "{\"kills\": %" PRIu64 ", \"seed\": %" PRIu64 ", \"seconds\": %.3f, \"frames\": %" PRIu64
                 ", \"lost\": %" PRIu64 ", \"duplicates\": %" PRIu64 ", \"corrupt\": %" PRIu64 ", \"leaked\": %" PRIu64
                 ", \"unaccounted_drops\": %" PRIu64 ", \"producer_deaths\": %" PRIu64 ", \"consumer_deaths\": %" PRIu64
                 ", \"reclaims\": %zu, \"reclaim_p50_seconds\": %.9f, \"reclaim_p99_seconds\": %.9f"
                 ", \"reclaim_max_seconds\": %.9f, \"worst_gap_seconds\": %.6f}\n",
                 kills, seed, seconds, result.frames, result.lost, result.duplicates, result.corrupt, result.leaked,
                 result.unaccounted, result.producer_deaths, result.consumer_deaths, result.reclaim_seconds.size(),
                 quantile(result.reclaim_seconds, 0.5), quantile(result.reclaim_seconds, 0.99),
                 quantile(result.reclaim_seconds, 1), result.worst_gap_seconds);
}

}  // namespace

int main(int count, char** arguments) {
    if (crash::is_worker(count, arguments)) return 0;
    uint64_t kills = 300, seed = 1;
    const char* json = nullptr;
    for (int i = 1; i + 1 < count; i += 2) {
        if (std::strcmp(arguments[i], "--kills") == 0) kills = std::strtoull(arguments[i + 1], nullptr, 10);
        else if (std::strcmp(arguments[i], "--seed") == 0) seed = std::strtoull(arguments[i + 1], nullptr, 10);
        else if (std::strcmp(arguments[i], "--json") == 0) json = arguments[i + 1];
        else return 2;
    }
    std::mt19937_64 random(seed);
    crash::Rig rig;
    rig.start();
    const double start = crash::now_seconds();
    uint64_t killed = 0;
    double deadline = start + 30;
    while (killed < kills && !rig.failed()) {
        // Mostly a moment of normal life in between; sometimes none, and then deaths meet deaths.
        const bool patient = random() % 4 != 0;
        const double until = crash::now_seconds() + static_cast<double>(random() % 3000) / 1e6;
        do rig.turn(1);
        while (!rig.failed() && crash::now_seconds() < deadline && (crash::now_seconds() < until || (patient && !rig.settled())));
        if (crash::now_seconds() >= deadline) break;
        const uint64_t victims = 1 + random() % 8;  // a mask, or one
        const uint64_t mask = victims == 8 ? 1 + random() % 15 : uint64_t{1} << random() % 4;
        for (int i = 0; i < 4; ++i) {
            if ((mask >> i & 1) == 0) continue;
            ++killed;
            if (i == 3) rig.kill_producer();
            else rig.kill_consumer(i);
        }
        deadline = crash::now_seconds() + 30;
    }
    const Result result = rig.finish();
    const double seconds = crash::now_seconds() - start;
    write_json(stdout, result, killed, seed, seconds);
    if (json != nullptr) {
        FILE* file = std::fopen(json, "we");
        if (file == nullptr) return 2;
        write_json(file, result, killed, seed, seconds);
        std::fclose(file);
    }
    if (!result.problem.empty()) std::fprintf(stderr, "%s\n", result.problem.c_str());
    const bool fine = result.problem.empty() && killed >= kills && result.lost == 0 && result.duplicates == 0 &&
                      result.corrupt == 0 && result.leaked == 0;
    return fine ? 0 : 1;
}
