// Producer and consumer in two processes: whole streams, and what a crash leaves.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "rig.hpp"

namespace {

using namespace rig;

// Runs `body` in a child, which dies with us; returns its pid.
template <class Body>
pid_t in_child(Body&& body) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
        body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        _exit(1);
    }
    _exit(0);
}

int status_of(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

void a_stream_between_two_processes() {
    for (const auto policy : {MO_BLOCK, MO_DROP_OLDEST}) {
        auto p = producer(8, {{16384, 3}});
        auto c = consumer(*p, policy);
        const uint64_t count = static_cast<uint64_t>(rounds(8'000));
        const pid_t child = in_child([&] {
            uint64_t next = 0;
            try {
                for (;;) {
                    auto slot = c->take(kLong);
                    CHECK(slot && slot->descriptor.source_index >= next);
                    if (policy == MO_BLOCK) CHECK(slot->descriptor.source_index == next);
                    next = slot->descriptor.source_index + 1;
                    CHECK(holds(*slot, slot->descriptor.source_index));
                    c->release(*slot);
                }
            } catch (const RingEnded& ended) {
                CHECK(ended.final_seq == count);
            }
        });
        for (uint64_t i = 0; i < count; ++i) {
            const auto slot = p->acquire(16384, kLong);
            CHECK(slot);
            fill(*slot, 16384, i);
            p->publish(*slot, frame(i), 16384);
        }
        p->finish(MO_END_OF_STREAM);
        CHECK(p->wait_acknowledged(kLong));
        CHECK(status_of(child) == 0);
    }
}

void a_killed_producer_leaves_whole_frames_and_an_end() {
    for (int round = 0; round < rounds(24); ++round) {
        // Made here, run there: the child's mappings are ours.
        auto p = producer(8, {{4096, 4}});
        auto c = consumer(*p);
        Monitor monitor(p->ring_fd());
        const pid_t child = in_child([&] {
            for (uint64_t i = 0;; ++i) {
                const auto slot = p->acquire(4096, kLong);
                fill(*slot, 4096, i);
                p->publish(*slot, frame(i), 4096);
            }
        });
        uint64_t next = 0;
        bool killed = false;
        try {
            for (;;) {
                auto slot = c->take(kLong);
                CHECK(slot && slot->descriptor.source_index == next && holds(*slot, next));
                ++next;
                c->release(*slot);
                if (next == 50 && !killed) {
                    killed = true;
                    kill(child, SIGKILL);
                    CHECK(WIFSIGNALED(status_of(child)));
                    CHECK(monitor.end(MO_END_FAILED) >= next);  // after the death, never on a guess
                }
            }
        } catch (const RingEnded& ended) {
            CHECK(ended.final_seq == next && std::strcmp(ended.reason, "failed") == 0);
        }
    }
}

void a_killed_consumer_is_dismissed_and_its_siblings_go_on() {
    auto p = producer(8, {{4096, 3}});
    int victim;
    auto c = consumer(*p, MO_BLOCK, &victim);
    auto sibling = consumer(*p);
    const pid_t child = in_child([&] {
        c->take(kLong);  // holds one for ever
        for (;;) pause();
    });
    CHECK(publish(*p, 0));
    while (p->backlog(victim) != 0) usleep(1000);
    CHECK(publish(*p, 1) && publish(*p, 2));
    for (uint64_t i = 0; i < 3; ++i) {
        auto slot = sibling->try_take();
        sibling->release(*slot);
    }
    CHECK(!publish(*p, 3));
    kill(child, SIGKILL);
    CHECK(WIFSIGNALED(status_of(child)));
    p->dismiss(victim);
    CHECK(p->free_slots() == 3 && publish(*p, 3));
    CHECK(holds(*sibling->try_take(), 3));
}

void a_child_dies_with_its_parent() {
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0);
    const pid_t middle = in_child([&] {
        const pid_t parent = getpid();
        in_child([&] {
            die_with_parent(parent);
            CHECK(write(pipe_ends[1], "x", 1) == 1);
            for (;;) pause();
        });
        char byte;
        CHECK(read(pipe_ends[0], &byte, 1) == 1);
    });
    CHECK(status_of(middle) == 0);
    // When the grandchild is gone too, the last writer of the pipe is.
    close(pipe_ends[1]);
    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 0);
    close(pipe_ends[0]);
    CHECK_THROWS(die_with_parent(1 << 30), RingError, "is gone");
    prctl(PR_SET_PDEATHSIG, 0);
}

}  // namespace

int main() {
    RUN(a_stream_between_two_processes);
    RUN(a_killed_producer_leaves_whole_frames_and_an_end);
    RUN(a_killed_consumer_is_dismissed_and_its_siblings_go_on);
    RUN(a_child_dies_with_its_parent);
}
