#include "rig.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

#include "error.hpp"
#include "steps.hpp"

namespace crash {

using namespace mo;

namespace {

// -- messages -----------------------------------------------------------------------------------------------

enum Kind : uint32_t { hello, admit, replace, cut, let_go_of, dismiss, go, attach_to, ended, finished, leave };

struct Message {
    uint32_t kind = 0;
    int32_t edge = -1;
    uint64_t a = 0;
    uint64_t b = 0;
    int fds[2] = {-1, -1};
};

bool send_message(int socket, const Message& message) {
    iovec part{const_cast<Message*>(&message), sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    const size_t count = message.fds[0] < 0 ? 0 : message.fds[1] < 0 ? 1 : 2;
    if (count > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        cmsghdr* first = CMSG_FIRSTHDR(&header);
        first->cmsg_level = SOL_SOCKET;
        first->cmsg_type = SCM_RIGHTS;
        first->cmsg_len = CMSG_LEN(count * sizeof(int));
        std::memcpy(CMSG_DATA(first), message.fds, count * sizeof(int));
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

bool receive_message(int socket, Message& message, int flags) {
    iovec part{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    ssize_t got;
    do got = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(sizeof message)) return false;
    message.fds[0] = message.fds[1] = -1;
    if (const cmsghdr* first = CMSG_FIRSTHDR(&header))
        std::memcpy(message.fds, CMSG_DATA(first), first->cmsg_len - CMSG_LEN(0));
    return true;
}

std::vector<int> edges_of(int role) { return role == 2 ? std::vector{2, 3} : std::vector{role}; }

// -- payload ------------------------------------------------------------------------------------------------

uint64_t word_of(uint64_t index, uint64_t place) { return (index + 1) * 0x9E3779B97F4A7C15u ^ place * 0xC2B2AE3D27D4EB4Fu; }

void fill(uint8_t* data, uint64_t index) {
    constexpr uint64_t words = kSlotBytes / 8;
    auto* to = reinterpret_cast<uint64_t*>(data);
    for (uint64_t i = 0; i < words / 2; ++i) to[i] = word_of(index, i);
    MO_STEP("harness.payload.half");
    for (uint64_t i = words / 2; i < words; ++i) to[i] = word_of(index, i);
    MO_STEP("harness.payload.written");
}

bool is_whole(const uint8_t* data, uint64_t index) {
    const auto* from = reinterpret_cast<const uint64_t*>(data);
    for (uint64_t i = 0; i < kSlotBytes / 8; ++i)
        if (from[i] != word_of(index, i)) return false;
    return true;
}

// -- workers ------------------------------------------------------------------------------------------------

Shared* map_shared(int fd) {
    void* data = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) std::abort();
    return static_cast<Shared*>(data);
}

Shared* shared_here = nullptr;
int process_here = -1;

const uint32_t& bell_word() { return reinterpret_cast<const uint32_t&>(shared_here->bell); }

class ProducerWorker {
  public:
    ProducerWorker(int socket, uint64_t incarnation, uint64_t first) : socket_(socket), next_(first) {
        const SizeClass size{kSlotBytes, 6, false};
        producer_ = std::make_unique<Producer>(kDescriptors, std::span(&size, 1), incarnation, std::nullopt);
        producer_->begin(first);
        Message message{hello, -1, first, 0, {producer_->ring_fd(), producer_->pool().fd(0)}};
        send_message(socket_, message);
    }

    void run() {
        while (!going_) listen(0);
        while (shared_here->stop == 0 && next_ < kMostFrames) publish();
        producer_->finish(MO_END_OF_STREAM);
        while (!wait([&] { return producer_->all_acknowledged(); })) {}
        send_message(socket_, {finished, -1, next_, 0, {-1, -1}});
        for (;;) listen(0);
    }

  private:
    void publish() {
        std::optional<WriteSlot> slot;
        wait([&] {
            slot = producer_->try_acquire(kSlotBytes);
            return slot.has_value();
        });
        say_dropped();
        if (!slot) return;
        fill(slot->data, next_);
        mo_descriptor descriptor = unknown_descriptor(MO_VIDEO_FRAME);
        descriptor.source_index = next_;
        // Every eighth time two by one commit.
        std::optional<WriteSlot> other;
        if (next_ % 8 == 7) other = producer_->try_acquire(kSlotBytes);
        if (other) {
            say_dropped();
            fill(other->data, next_ + 1);
            mo_descriptor second = descriptor;
            second.source_index = next_ + 1;
            const Publication both[] = {{&*slot, &descriptor, kSlotBytes}, {&*other, &second, kSlotBytes}};
            producer_->publish_together(both);
            next_ += 2;
        } else {
            producer_->publish(*slot, descriptor, kSlotBytes);
            ++next_;
        }
        shared_here->published = next_;
    }

    void say_dropped() {
        for (const auto& [edge, handle] : handles_)
            if (policy_of(edge) == MO_DROP_OLDEST)
                for (const uint64_t index : producer_->take_dropped(handle)) ++shared_here->dropped[edge][index];
    }

    // Until `attempt` succeeds, or 20 ms; messages are heard in between.
    template <class Attempt>
    bool wait(Attempt&& attempt) {
        return producer_->wait_until(
            deadline_after(20 * kMillisecond),
            [&] {
                if (shared_here->bell != heard_) listen(MSG_DONTWAIT);
                return attempt();
            },
            [&](WaitSet set, int64_t ns) {
                set.add(bell_word(), heard_, nullptr);
                set.sleep(ns);
            });
    }

    void listen(int flags) {
        heard_ = shared_here->bell;
        Message message;
        while (receive_message(socket_, message, flags)) {
            answer(message);
            flags = MSG_DONTWAIT;
        }
        if (flags == 0) _exit(0);  // the supervisor is gone
    }

    void answer(const Message& message) {
        Message reply{message.kind, message.edge, 0, 0, {-1, -1}};
        switch (message.kind) {
            case admit:
                handles_[message.edge] = producer_->admit(message.fds[0], policy_of(message.edge));
                break;
            case replace: {
                const Replacement replacement = producer_->replace(handles_[message.edge], message.fds[0]);
                for (const uint64_t index : replacement.lost) ++shared_here->dropped[message.edge][index];
                reply.a = replacement.start;
                break;
            }
            case cut:
                cut_off_ = handles_[message.edge];
                handles_[message.edge] = producer_->cut(cut_off_, message.fds[0]);
                reply.a = producer_->tail();
                break;
            case let_go_of:
                if (cut_off_ >= 0) producer_->dismiss(std::exchange(cut_off_, -1));
                break;
            case dismiss:
                say_dropped();
                producer_->dismiss(handles_[message.edge]);
                say_dropped();
                handles_.erase(message.edge);
                // What it had not taken by then it need not have: no older than the ring's descriptors.
                reply.a = producer_->tail() - std::min<uint64_t>(producer_->tail(), kDescriptors);
                break;
            case go: going_ = true; return;
            default: _exit(0);
        }
        if (message.fds[0] >= 0) close(message.fds[0]);
        send_message(socket_, reply);
    }

    int socket_;
    std::unique_ptr<Producer> producer_;
    uint64_t next_;
    uint32_t heard_ = 0;
    bool going_ = false;
    std::map<int, int> handles_;
    int cut_off_ = -1;  // whose work was handed over
};

class ConsumerWorker {
  public:
    ConsumerWorker(int socket, int role) : socket_(socket) {
        for (const int edge : edges_of(role)) {
            inputs_.push_back(std::make_unique<Input>(edge));
            send_message(socket_, {hello, edge, 0, 0, {inputs_.back()->consumer.page_fd(), -1}});
        }
    }

    void run() {
        for (;;) {
            const size_t attached = std::ranges::count_if(inputs_, [](const auto& input) { return input->attached; });
            listen(attached == 0 ? 0 : MSG_DONTWAIT);
            if (attached > 0) read(attached == inputs_.size() ? 50 * kMillisecond : kMillisecond);
        }
    }

  private:
    struct Input {
        explicit Input(int which) : edge(which), consumer(policy_of(which)) {}

        int edge;
        Consumer consumer;
        bool attached = false;
        std::optional<uint64_t> last;
    };

    void listen(int flags) {
        Message message;
        if (!receive_message(socket_, message, flags)) {
            if (flags == 0) _exit(0);
            return;
        }
        if (message.kind == leave) _exit(0);
        for (const auto& input : inputs_) {
            if (input->edge != message.edge) continue;
            const int slab = message.fds[1];
            input->consumer.attach(message.fds[0], std::span(&slab, 1), std::span(&kSlotBytes, 1));
            input->attached = true;
        }
        for (const int fd : message.fds)
            if (fd >= 0) close(fd);
    }

    void read(int64_t timeout_ns) {
        if (inputs_.size() == 1) {
            take(*inputs_[0], timeout_ns);
            return;
        }
        std::vector<Consumer*> consumers;
        std::vector<Input*> waiting;
        for (const auto& input : inputs_) {
            if (!input->attached) continue;
            consumers.push_back(&input->consumer);
            waiting.push_back(input.get());
        }
        for (const size_t ready : wait_any(consumers, timeout_ns)) take(*waiting[ready], 0);
    }

    void take(Input& input, int64_t timeout_ns) {
        try {
            auto slot = input.consumer.take(timeout_ns);
            if (slot) process(input, *slot);
        } catch (const RingEnded& end) {
            input.attached = false;
            const bool over = std::strcmp(end.reason, "end_of_stream") == 0;
            send_message(socket_, {ended, input.edge, end.final_seq, over, {-1, -1}});
        } catch (const RingError&) {
            input.attached = false;  // dismissed
        }
    }

    void process(Input& input, ReadSlot& slot) {
        const uint64_t index = slot.descriptor.source_index;
        input.consumer.launch(slot);
        if (shared_here->slow_edge == input.edge + 1) usleep(2000);
        if (index != slot.descriptor.sequence || !is_whole(slot.data, index)) ++shared_here->corrupt;
        const bool follows = !input.last || (policy_of(input.edge) == MO_BLOCK ? index == *input.last + 1
                                                                               : index > *input.last);
        if (!follows) ++shared_here->disorder;
        input.last = index;
        ++shared_here->delivered[input.edge][index];
        shared_here->last_frame_ns[input.edge] = monotonic_ns();
        MO_STEP("harness.marked");
        if (!is_whole(slot.data, index) && !input.consumer.dismissed()) ++shared_here->corrupt;
        input.consumer.release(slot);
    }

    int socket_;
    std::vector<std::unique_ptr<Input>> inputs_;
};

std::set<ino_t> mapped_memfds(pid_t pid) {
    std::set<ino_t> found;
    const std::string path = "/proc/" + std::to_string(pid) + "/maps";
    FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return found;
    char line[512];
    while (std::fgets(line, sizeof line, file) != nullptr) {
        unsigned long inode = 0;
        if (std::strstr(line, "memfd:observatory") != nullptr &&
            std::sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1)
            found.insert(inode);
    }
    std::fclose(file);
    return found;
}

std::set<ino_t> open_memfds(pid_t pid) {
    std::set<ino_t> found;
    const std::string path = "/proc/" + std::to_string(pid) + "/fd";
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) return found;
    while (const dirent* entry = readdir(folder)) {
        char target[256];
        const std::string link = path + "/" + entry->d_name;
        const ssize_t length = readlink(link.c_str(), target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        struct stat status;
        if (std::strstr(target, "memfd:observatory") != nullptr && stat(link.c_str(), &status) == 0)
            found.insert(status.st_ino);
    }
    closedir(folder);
    return found;
}

int count_own_fds() {
    int count = 0;
    DIR* folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
}

}  // namespace

mo_edge_policy policy_of(int edge) { return edge == 0 || edge == 2 ? MO_BLOCK : MO_DROP_OLDEST; }

double now_seconds() { return static_cast<double>(monotonic_ns()) / 1e9; }

bool is_worker(int count, char** arguments) {
    if (count < 6 || std::strcmp(arguments[1], "--worker") != 0) return false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    shared_here = map_shared(std::atoi(arguments[2]));
    close(std::atoi(arguments[2]));
    const int socket = std::atoi(arguments[3]);
    const int role = std::atoi(arguments[4]);
    process_here = role + 1;
    try {
        if (role < 0)
            ProducerWorker(socket, std::strtoull(arguments[5], nullptr, 10), std::strtoull(arguments[6], nullptr, 10))
                .run();
        else
            ConsumerWorker(socket, role).run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "worker %d: %s\n", role, error.what());
        std::_Exit(1);
    }
    return true;
}

// -- the supervisor -----------------------------------------------------------------------------------------

Rig::Rig() {
    fds_before_ = count_own_fds();
    shared_fd_ = memfd_create("crash-shared", 0);
    if (shared_fd_ < 0 || ftruncate(shared_fd_, sizeof(Shared)) != 0) std::abort();
    shared_ = map_shared(shared_fd_);
    shared_here = shared_;
}

Rig::~Rig() {
    for (Process& process : consumers_) let_go(process);
    let_go(producer_);
    for (Ring& ring : rings_)
        for (const int fd : {ring.fd, ring.slab})
            if (fd >= 0) close(fd);
    munmap(shared_, sizeof(Shared));
    if (shared_fd_ >= 0) close(shared_fd_);
}

void Rig::fail(const std::string& what) {
    if (problem_.empty()) problem_ = what;
}

void Rig::let_go(Process& process) {
    if (process.alive()) {
        kill(process.pid, SIGKILL);
        waitpid(process.pid, nullptr, 0);
    }
    for (const int fd : {process.pidfd, process.socket})
        if (fd >= 0) close(fd);
    for (int& page : process.pages) {
        if (page >= 0) close(page);
        page = -1;
    }
    process = Process();
}

void Rig::spawn(const std::vector<std::string>& arguments, Process& process) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    const pid_t child = fork();
    if (child == 0) {
        fcntl(ends[1], F_SETFD, 0);
        std::vector<std::string> words = {"/proc/self/exe", "--worker", std::to_string(shared_fd_),
                                          std::to_string(ends[1])};
        words.insert(words.end(), arguments.begin(), arguments.end());
        std::vector<char*> pointers;
        for (std::string& word : words) pointers.push_back(word.data());
        pointers.push_back(nullptr);
        execv(pointers[0], pointers.data());
        _exit(127);
    }
    close(ends[1]);
    process.pid = child;
    process.pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    process.socket = ends[0];
    if (child < 0 || process.pidfd < 0) std::abort();
}

void Rig::spawn_producer() {
    producer_ready_ = false;
    spawn({"-1", std::to_string(++incarnation_), std::to_string(next_first_)}, producer_);
}

int Rig::spawn_consumer(int role) {
    if (unused_.empty()) {
        unused_.push_back(static_cast<int>(consumers_.size()));
        consumers_.emplace_back();
    }
    const int index = unused_.back();
    unused_.pop_back();
    consumers_[index].role = role;
    spawn({std::to_string(role), "0"}, consumers_[index]);
    return index;
}

void Rig::bury(int index) {
    let_go(consumers_[index]);
    unused_.push_back(index);
}

bool Rig::hear_hello(Process& process) {
    while (process.hellos < edges_of(process.role).size()) {
        Message message;
        if (!receive_message(process.socket, message, 0)) return false;
        process.pages[message.edge] = message.fds[0];
        ++process.hellos;
    }
    return true;
}

// One that waits with its pages made; another takes its place.
int Rig::ready_consumer(int role) {
    for (int tries = 0; tries < 50; ++tries) {
        if (spares_[role] < 0) spares_[role] = spawn_consumer(role);
        const int index = std::exchange(spares_[role], -1);
        if (hear_hello(consumers_[index])) return index;
        bury(index);
    }
    fail("no consumer process can be started");
    return 0;
}

void Rig::start() {
    spawn_producer();
    for (int role = 0; role < 3; ++role) {
        const int index = ready_consumer(role);
        for (const int edge : edges_of(role)) {
            edges_[edge].process = index;
            edges_[edge].page = consumers_[index].pages[edge];
        }
    }
    for (int role = 0; role < 3; ++role) spares_[role] = spawn_consumer(role);
}

void Rig::to_producer(uint32_t kind, int edge, int fd) {
    send_message(producer_.socket, {kind, edge, 0, 0, {fd, -1}});
    ++shared_->bell;
    futex_wake(bell_word());
}

void Rig::attach(int edge) {
    Edge& state = edges_[edge];
    if (state.ring >= rings_.size() || state.attached || state.over || state.dismissed) return;
    const Ring& ring = rings_[state.ring];
    send_message(consumers_[state.process].socket, {attach_to, edge, 0, 0, {ring.fd, ring.slab}});
    state.attached = true;
}

void Rig::from_producer() {
    Message message;
    while (producer_.alive() && receive_message(producer_.socket, message, MSG_DONTWAIT)) {
        if (message.kind == hello) {
            Ring ring;
            ring.fd = message.fds[0];
            ring.slab = message.fds[1];
            ring.first = message.a;
            ring.monitor = std::make_unique<Monitor>(ring.fd);
            ring.monitor->seal_ring();
            for (int edge = 0; edge < kEdges; ++edge) {
                if (edges_[edge].dismissed) continue;
                ring.watched[edge].push_back(ring.monitor->watch(edges_[edge].page));
                to_producer(admit, edge, edges_[edge].page);
            }
            rings_.push_back(std::move(ring));
            producer_ready_ = true;
            to_producer(go, -1, -1);
            for (int edge = 0; edge < kEdges; ++edge)
                if (edges_[edge].ring + 1 == rings_.size()) attach(edge);
            continue;
        }
        if (message.kind == finished) {
            producer_finished_ = true;
            continue;
        }
        if (message.edge < 0) continue;
        Edge& edge = edges_[message.edge];
        if (message.kind == replace && --edge.replacing == 0) {
            result_.reclaim_seconds.push_back(now_seconds() - edge.since);
            keep_last(rings_.back(), message.edge);
            if (edge.ring + 1 == rings_.size()) attach(message.edge);
        } else if (message.kind == Kind::dismiss) {
            dismissed(message.a);
        } else if (message.kind == cut && cut_to_ >= 0) {
            part(edge.process);
            edge.process = cut_to_;
            edge.page = consumers_[cut_to_].pages[0];
            edge.ring = rings_.size() - 1;
            edge.attached = false;
            rings_.back().watched[0].push_back(rings_.back().monitor->watch(edge.page));
            keep_last(rings_.back(), 0);
            cut_to_ = -1;
            attach(0);
        }
    }
}

void Rig::from_consumer(int index) {
    Process& process = consumers_[index];
    Message message;
    while (process.alive() && receive_message(process.socket, message, MSG_DONTWAIT)) {
        if (message.kind == hello) {
            process.pages[message.edge] = message.fds[0];
            ++process.hellos;
            continue;
        }
        if (message.kind != ended) continue;
        Edge& edge = edges_[message.edge];
        if (index == leaving_) {
            leaving_ = -1;
            parted(index);
            return;
        }
        if (edge.process != index) continue;
        edge.attached = false;
        if (message.b != 0) {
            edge.over = true;
            continue;
        }
        ++edge.ring;
        attach(message.edge);
    }
}

void Rig::prune() {
    size_t needed = rings_.size();
    for (const Edge& edge : edges_)
        if (!edge.dismissed) needed = std::min(needed, edge.ring);
    if (leaving_ >= 0) return;
    for (size_t i = 0; i < needed && i < rings_.size(); ++i) {
        Ring& ring = rings_[i];
        if (ring.fd < 0 || !ring.ended) continue;
        ring.monitor.reset();
        close(std::exchange(ring.fd, -1));
        close(std::exchange(ring.slab, -1));
    }
}

void Rig::keep_last(Ring& ring, int edge) {
    auto& handles = ring.watched[edge];
    for (; handles.size() > 1; handles.erase(handles.begin())) ring.monitor->unwatch(handles.front());
}

// In a ring that has ended, the supervisor does it.
void Rig::replace_in(size_t number, int edge, size_t newer) {
    Ring& ring = rings_[number];
    if (!ring.monitor || ring.watched[edge].empty()) return;
    // Whichever of its pages is listed: the producer may have died between two replacements.
    for (size_t i = ring.watched[edge].size() - newer; i-- > 0;) {
        try {
            const Replacement replacement = ring.monitor->replace(ring.watched[edge][i], edges_[edge].page);
            for (const uint64_t index : replacement.lost) ++shared_->dropped[edge][index];
            std::swap(ring.watched[edge][i], ring.watched[edge].back());
            keep_last(ring, edge);
            return;
        } catch (const RingError& error) {
            if (std::strstr(error.what(), "never admitted") == nullptr) fail(error.what());
        }
    }
    // Not admitted before the producer died, so nothing was published for it.
}

void Rig::producer_died(double now) {
    ++result_.producer_deaths;
    from_producer();  // what it still said
    waitpid(producer_.pid, nullptr, 0);
    producer_.pid = -1;
    let_go(producer_);
    std::array<bool, kEdges> going{};
    for (int edge = 0; edge < kEdges; ++edge) going[edge] = !edges_[edge].dismissed && !edges_[edge].over;
    waits_.push_back({now, going});
    if (producer_ready_) {
        Ring& ring = rings_.back();
        const bool was_over = ring.monitor->ended();
        if (helper_ends_) {
            const pid_t helper = fork();
            if (helper == 0) {
                process_here = 4;
                ring.monitor->end(MO_END_MIGRATED);
                _exit(0);
            }
            waitpid(helper, nullptr, 0);
        }
        next_first_ = ring.monitor->end(MO_END_MIGRATED);
        ring.ended = true;
        result_.reclaim_seconds.push_back(now_seconds() - now);
        const auto trail = ring.monitor->trail();
        if (!trail.empty() && trail.back().source_index + 1 != next_first_) fail("the trail does not lead to the end");
        for (int edge = 0; edge < kEdges; ++edge) {
            if (edges_[edge].replacing == 0) continue;
            edges_[edge].replacing = 0;
            replace_in(rings_.size() - 1, edge, 1);  // the last one is the page that comes in
            result_.reclaim_seconds.push_back(now_seconds() - edges_[edge].since);
            if (edges_[edge].ring + 1 == rings_.size()) attach(edge);
        }
        if (dismissing_) {
            dismissed(ring.first);  // it may or may not have been let go
        }
        if (cut_to_ >= 0) {
            // Not a frame was published since: the other one begins with the next ring.
            part(edges_[0].process);
            edges_[0].process = std::exchange(cut_to_, -1);
            edges_[0].page = consumers_[edges_[0].process].pages[0];
            edges_[0].ring = rings_.size();
            edges_[0].attached = false;
        }
        if (was_over) {
            producer_finished_ = true;
            return;
        }
    }
    spawn_producer();
}

void Rig::consumer_died(int index, double now) {
    Process& dead = consumers_[index];
    waitpid(dead.pid, nullptr, 0);
    dead.pid = -1;
    if (std::ranges::find(spares_, index) != spares_.end()) {
        spares_[dead.role] = -1;
        bury(index);
        return;
    }
    ++result_.consumer_deaths;
    from_consumer(index);
    const std::vector<int> its = edges_of(dead.role);
    std::array<bool, kEdges> going{};
    for (int edge = 0; edge < kEdges; ++edge)
        going[edge] = !edges_[edge].dismissed && !edges_[edge].over && std::ranges::find(its, edge) == its.end();
    waits_.push_back({now, going});
    // What it had not acknowledged may have been delivered already.
    for (const int edge : its) {
        const Edge& state = edges_[edge];
        if (state.ring >= rings_.size() || !rings_[state.ring].monitor || rings_[state.ring].watched[edge].empty()) continue;
        const Ring& ring = rings_[state.ring];
        const PageCounters counters = ring.monitor->consumer(ring.watched[edge].back());
        for (uint64_t i = std::max(counters.acked, ring.first); i < counters.taken; ++i) ++may_come_again_[edge][i];
    }
    const int spare = spares_[dead.role];
    const bool was_ready = spare >= 0 && consumers_[spare].hellos == its.size();
    const int heir = ready_consumer(dead.role);
    if (!was_ready) now = now_seconds();  // without a stand-by there is nothing to replace the page by
    for (const int edge : its) {
        Edge& state = edges_[edge];
        if (state.over || state.dismissed) continue;
        state.process = heir;
        state.page = consumers_[heir].pages[edge];
        state.attached = false;
        state.since = now;
        for (size_t i = state.ring; i < rings_.size(); ++i) {
            if (rings_[i].ended) {  // by us, after its producer's death; a finished producer still does it itself
                replace_in(i, edge, 0);
                if (i == state.ring) result_.reclaim_seconds.push_back(now_seconds() - now);
            } else {
                rings_[i].watched[edge].push_back(rings_[i].monitor->watch(state.page));
                ++state.replacing;
                to_producer(replace, edge, state.page);
            }
        }
        if (state.ring < rings_.size() && rings_[state.ring].ended) attach(edge);
    }
    bury(index);
}

void Rig::watch_gaps() {
    const double now = now_seconds();
    for (Wait& wait : waits_)
        for (int edge = 0; edge < kEdges; ++edge) {
            if (!wait.edges[edge]) continue;
            const double last = static_cast<double>(shared_->last_frame_ns[edge]) / 1e9;
            if (last <= wait.since) continue;
            wait.edges[edge] = false;
            result_.worst_gap_seconds = std::max(result_.worst_gap_seconds, now - wait.since);
        }
    std::erase_if(waits_, [](const Wait& wait) {
        return std::ranges::none_of(wait.edges, [](bool waiting) { return waiting; });
    });
}

void Rig::turn(int timeout_ms) {
    std::vector<pollfd> polls;
    std::vector<int> whose;
    const auto add = [&](const Process& process, int index) {
        if (!process.alive()) return;
        polls.push_back({process.pidfd, POLLIN, 0});
        whose.push_back(index);
        polls.push_back({process.socket, POLLIN, 0});
        whose.push_back(index);
    };
    add(producer_, -1);
    for (size_t i = 0; i < consumers_.size(); ++i) add(consumers_[i], static_cast<int>(i));
    poll(polls.data(), polls.size(), timeout_ms);
    const double now = now_seconds();
    // Deaths first: nothing that a dead process still said changes them.
    for (size_t i = 0; i < polls.size(); i += 2) {
        if ((polls[i].revents & POLLIN) == 0) continue;
        if (whose[i] < 0)
            producer_died(now);
        else if (consumers_[whose[i]].alive() && consumers_[whose[i]].pidfd == polls[i].fd)
            consumer_died(whose[i], now);
    }
    from_producer();
    for (size_t i = 0; i < consumers_.size(); ++i) from_consumer(static_cast<int>(i));
    for (int role = 0; role < 3; ++role)
        if (spares_[role] < 0) spares_[role] = spawn_consumer(role);
    prune();
    watch_gaps();
}

void Rig::kill_producer() {
    if (producer_.alive()) kill(producer_.pid, SIGKILL);
}

void Rig::kill_consumer(int role) {
    const Edge& edge = edges_[role];
    if (!edge.dismissed && edge.process >= 0 && consumers_[edge.process].alive())
        kill(consumers_[edge.process].pid, SIGKILL);
}

bool Rig::settled() const {
    if (!producer_.alive() || !producer_ready_ || cut_to_ >= 0 || leaving_ >= 0 || dismissing_) return false;
    for (const Edge& edge : edges_) {
        if (edge.dismissed) continue;
        if (!consumers_[edge.process].alive() || !edge.attached || edge.replacing > 0 || edge.ring + 1 != rings_.size())
            return false;
    }
    return true;
}

void Rig::hand_over() {
    if (!producer_.alive() || !producer_ready_ || cut_to_ >= 0) return;
    cut_to_ = ready_consumer(0);
    to_producer(cut, 0, consumers_[cut_to_].pages[0]);
}

void Rig::parted(int from) {
    bury(from);
    if (producer_.alive()) to_producer(let_go_of, 0, -1);
}

// From the process that edge 0 was handed over from: at once if it has read its share, else when it has.
void Rig::part(int from) {
    if (edges_[0].ring >= rings_.size())
        parted(from);
    else
        leaving_ = from;
}

void Rig::dismissed(uint64_t from) {
    dismissing_ = false;
    for (Ring& ring : rings_)
        for (; !ring.watched[1].empty(); ring.watched[1].pop_back())
            if (ring.monitor) ring.monitor->unwatch(ring.watched[1].back());
    gone_from_[1] = from;
    edges_[1].dismissed = true;
    bury(edges_[1].process);
}

void Rig::dismiss() {
    if (!producer_.alive() || !producer_ready_ || dismissing_ || edges_[1].dismissed) return;
    dismissing_ = true;
    to_producer(Kind::dismiss, 1, -1);
}

bool Rig::everybody_finished() const {
    if (!producer_finished_ || leaving_ >= 0) return false;
    return std::ranges::all_of(edges_, [](const Edge& edge) { return edge.over || edge.dismissed; });
}

// Of all that the living hold, what is not of this moment.
uint64_t Rig::count_leaks() {
    std::set<ino_t> expected;
    const auto expect = [&](int fd) {
        struct stat status;
        if (fd >= 0 && fstat(fd, &status) == 0) expected.insert(status.st_ino);
    };
    if (!rings_.empty()) {
        expect(rings_.back().fd);
        expect(rings_.back().slab);
    }
    for (const Process& process : consumers_)
        for (const int page : process.pages) expect(page);
    std::set<ino_t> found;
    const auto look = [&](pid_t pid) {
        std::set<ino_t> its = mapped_memfds(pid);
        its.merge(open_memfds(pid));
        for (const ino_t inode : its)
            if (!expected.contains(inode))
                std::fprintf(stderr, "process %d (producer %d, we %d) still has memfd inode %lu\n", pid, producer_.pid,
                             getpid(), static_cast<unsigned long>(inode));
        found.merge(its);
    };
    look(getpid());
    if (producer_.alive()) look(producer_.pid);
    for (const Process& process : consumers_)
        if (process.alive()) look(process.pid);
    uint64_t leaked = 0;
    for (const ino_t inode : found) leaked += !expected.contains(inode);
    return leaked;
}

void Rig::check_marks(Result& result) {
    result.frames = shared_->published;
    for (int edge = 0; edge < kEdges; ++edge) {
        for (uint64_t i = 0; i < result.frames; ++i) {
            const int delivered = shared_->delivered[edge][i];
            const auto found = may_come_again_[edge].find(i);
            const int allowed = 1 + (found == may_come_again_[edge].end() ? 0 : found->second);
            if (delivered > allowed) ++result.duplicates;
            if (delivered > 0 || shared_->dropped[edge][i] > 0) continue;
            if (edges_[edge].dismissed && i >= gone_from_[edge]) continue;
            if (policy_of(edge) == MO_BLOCK)
                ++result.lost;
            else
                ++result.unaccounted;
        }
    }
    // A producer that dies takes the news of what it dropped last along: no more than it has slots and descriptors.
    const uint64_t bearable = result.producer_deaths * 2 * kDescriptors;
    if (result.unaccounted > bearable) result.lost += result.unaccounted - bearable;
    result.corrupt = shared_->corrupt;
    result.duplicates += shared_->disorder;
}

Result Rig::finish() {
    shared_->stop = 1;
    const double deadline = now_seconds() + 30;
    while (!everybody_finished() && problem_.empty()) {
        ++shared_->bell;
        futex_wake(bell_word());
        turn(20);
        if (now_seconds() > deadline) {
            std::string text = "the stream does not end: producer " + std::to_string(producer_.pid) +
                               (producer_finished_ ? " finished" : "");
            for (int edge = 0; edge < kEdges; ++edge)
                text += "; edge " + std::to_string(edge) + " ring " + std::to_string(edges_[edge].ring) + " of " +
                        std::to_string(rings_.size()) + (edges_[edge].attached ? " attached" : "") +
                        (edges_[edge].over ? " over" : "") + " replacing " + std::to_string(edges_[edge].replacing);
            fail(text);
        }
    }
    Result result = std::move(result_);
    result.problem = problem_;
    for (const int spare : spares_)
        if (spare >= 0) hear_hello(consumers_[spare]);
    result.leaked = count_leaks();
    check_marks(result);
    for (Process& process : consumers_) let_go(process);
    let_go(producer_);
    for (Ring& ring : rings_) {
        ring.monitor.reset();
        for (int* fd : {&ring.fd, &ring.slab})
            if (*fd >= 0) close(std::exchange(*fd, -1));
    }
    close(std::exchange(shared_fd_, -1));
    const int fds = count_own_fds();
    if (fds > fds_before_) std::fprintf(stderr, "%d descriptors, %d before\n", fds, fds_before_);
    if (fds > fds_before_) result.leaked += static_cast<uint64_t>(fds - fds_before_);
    return result;
}

}  // namespace crash

#ifdef MO_FAILPOINTS
namespace mo {

void step(const char* name) noexcept {
    crash::Shared* shared = crash::shared_here;
    if (shared == nullptr || crash::process_here != shared->step_process || std::strcmp(name, shared->step) != 0) return;
    if (shared->step_after.fetch_sub(1) != 1) return;
    shared->step_fired = 1;
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

}  // namespace mo
#endif
