// A running stream that can be killed: one producer process and three consumer processes with four edges, and the
// supervisor of docs/dataplane.md, which ends rings, replaces pages and starts processes again.
//
// Every process is this program again (fork and exec), so it holds nothing but what it was sent.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "consumer.hpp"
#include "monitor.hpp"
#include "producer.hpp"

namespace crash {

inline constexpr int kEdges = 4;
inline constexpr uint64_t kMostFrames = uint64_t{8} << 20;
inline constexpr uint64_t kSlotBytes = 4096;
inline constexpr uint32_t kDescriptors = 8;

// What all processes see. Marks are made before the acknowledgement, as an operator's output is published before.
struct Shared {
    std::atomic<uint32_t> bell;  // there is a message for the producer
    std::atomic<uint32_t> stop;  // the producer ends the stream
    std::atomic<uint64_t> published;
    std::atomic<uint64_t> corrupt;   // payloads that were not what was published
    std::atomic<int64_t> last_frame_ns[kEdges];
    std::atomic<uint64_t> disorder;  // frames that came again, or out of order, within one process
    char step[64];                   // where a process dies, and
    std::atomic<int> step_process;   // which: 0 the producer, 1 to 3 the consumers, 4 the supervisor's helper
    std::atomic<uint32_t> step_after;  // how many visits before
    std::atomic<uint32_t> step_fired;
    std::atomic<int> slow_edge;  // plus one: its consumer takes its time, so frames have to be dropped
    std::atomic<uint8_t> delivered[kEdges][kMostFrames];
    std::atomic<uint8_t> dropped[kEdges][kMostFrames];
};

// The value below which that share of them lies; 0 of none.
inline double quantile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

struct Result {
    uint64_t frames = 0;
    uint64_t lost = 0;         // beyond what the contract allows
    uint64_t duplicates = 0;   // the same
    uint64_t unaccounted = 0;  // dropped by a producer that died before it could say so (drop_oldest only)
    uint64_t corrupt = 0;
    uint64_t leaked = 0;  // memfds, and descriptors of the supervisor
    uint64_t producer_deaths = 0;
    uint64_t consumer_deaths = 0;
    std::vector<double> reclaim_seconds;  // from the pidfd (and a stand-by's page) to the ring's end or the replacement
    double worst_gap_seconds = 0;         // without a frame at some edge that was not killed, around a death
    std::string problem;                  // "" if the run ended
};

mo_edge_policy policy_of(int edge);

class Rig {
  public:
    Rig();
    ~Rig();
    Rig(const Rig&) = delete;
    Rig& operator=(const Rig&) = delete;

    Shared& shared() { return *shared_; }
    void start();
    // Handles whatever happened, waiting for something at most that long.
    void turn(int timeout_ms);
    void kill_producer();
    void kill_consumer(int process);  // 0 to 2
    // Whether everybody is where they should be: nobody dead, everybody told.
    bool settled() const;
    bool failed() const { return !problem_.empty(); }
    // Hands edge 0 over to another process.
    void hand_over();
    // Lets edge 1 go.
    void dismiss();
    // The supervisor's helper ends rings, and may die doing so.
    void end_by_helper(bool helper) { helper_ends_ = helper; }
    // Ends the stream, checks everything, and lets everybody go.
    Result finish();

  private:
    struct Process {
        pid_t pid = -1;
        int pidfd = -1;
        int socket = -1;
        int role = -1;  // -1 the producer
        std::array<int, kEdges> pages{-1, -1, -1, -1};
        size_t hellos = 0;
        bool alive() const { return pid > 0; }
    };
    struct Ring {
        int fd = -1;
        int slab = -1;
        uint64_t first = 0;
        std::unique_ptr<mo::Monitor> monitor;
        std::array<std::vector<int>, kEdges> watched;  // every page that may be listed, oldest first
        bool ended = false;
    };
    struct Edge {
        int process = -1;  // index into consumers_
        int page = -1;
        size_t ring = 0;          // which it reads, or is to read
        bool attached = false;    // it was told to
        bool over = false;        // it has read the last ring to its end
        int replacing = 0;        // times that the producer was asked and has not answered
        double since = 0;         // the pidfd of its last process became readable
        bool dismissed = false;
    };
    struct Wait {  // after a death: the edges that have to go on
        double since;
        std::array<bool, kEdges> edges;
    };

    void spawn(const std::vector<std::string>& arguments, Process& process);
    void spawn_producer();
    int spawn_consumer(int role);
    int ready_consumer(int role);
    void from_producer();
    void from_consumer(int index);
    void producer_died(double now);
    void consumer_died(int index, double now);
    void replace_in(size_t ring, int edge, size_t newer);
    void dismissed(uint64_t from);
    void bury(int index);
    void part(int from);
    void parted(int from);
    static bool hear_hello(Process& process);
    static void keep_last(Ring& ring, int edge);
    void attach(int edge);
    void to_producer(uint32_t kind, int edge, int fd);
    void prune();
    void watch_gaps();
    void fail(const std::string& what);
    void check_marks(Result& result);
    uint64_t count_leaks();
    bool everybody_finished() const;
    void let_go(Process& process);

    int shared_fd_ = -1;
    Shared* shared_ = nullptr;
    Process producer_;
    std::deque<Process> consumers_;
    std::vector<int> unused_;  // places in it
    std::vector<Ring> rings_;
    std::array<Edge, kEdges> edges_;
    std::array<int, 3> spares_{-1, -1, -1};
    bool producer_ready_ = false;
    bool producer_finished_ = false;
    int cut_to_ = -1;      // the process that edge 0 is being handed over to
    int leaving_ = -1;     // the one that it was handed over from, while it reads its share
    bool dismissing_ = false;
    uint64_t incarnation_ = 0;
    uint64_t next_first_ = 0;
    std::vector<Wait> waits_;
    std::array<std::map<uint64_t, int>, kEdges> may_come_again_;
    std::array<uint64_t, kEdges> gone_from_{};  // dismissed edges: the first frame that they need not have
    Result result_;
    std::string problem_;
    int fds_before_ = 0;
    bool helper_ends_ = false;
};

double now_seconds();
// Of a process that the rig started: runs it and returns true. To be called first by every main.
bool is_worker(int count, char** arguments);

}  // namespace crash
