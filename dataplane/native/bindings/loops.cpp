// What `dataplane.aio` waits with. All under the GIL; only the sleeping thread of mo::Wakeups runs without it.
#include "loops.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "common.hpp"
#include "consumer.hpp"
#include "producer.hpp"
#include "wakeups.hpp"

namespace bindings {

size_t watches_armed = 0;

namespace {

class LoopWakeups;
std::vector<LoopWakeups*> everybody;

// The watches of one event loop, and the flags in shared memory that are up for them.
class LoopWakeups {
  public:
    LoopWakeups() { everybody.push_back(this); }
    LoopWakeups(const LoopWakeups&) = delete;
    LoopWakeups& operator=(const LoopWakeups&) = delete;
    ~LoopWakeups() {
        close();
        std::erase(everybody, this);
    }

    int fd() const {
        require_open();
        return wakeups_->fd();
    }

    std::optional<uint64_t> watch_consumer(const std::shared_ptr<mo::Consumer>& consumer) {
        require_open();
        if (consumer->ready()) return std::nullopt;
        consumer->note_ready();
        auto flag = raise(consumer);
        mo::WaitSet doorbell, progress;
        consumer->add_doorbell(doorbell);
        consumer->add_progress(progress);
        // Again with the flag up: what was published before it could be seen rings no bell.
        if (consumer->ready()) return std::nullopt;
        return arm(consumer, std::move(flag), std::move(doorbell), std::move(progress));
    }

    std::optional<uint64_t> watch_producer(const std::shared_ptr<mo::Producer>& producer) {
        require_open();
        auto flag = raise(producer);
        return arm(producer, std::move(flag), producer->room(), producer->end());
    }

    void forget(uint64_t token) noexcept {
        if (!wakeups_ || wakeups_->forked()) return;
        wakeups_->forget(token);
        disarm(token);
    }

    std::vector<uint64_t> fired() {
        require_open();
        auto tokens = wakeups_->fired();
        for (const uint64_t token : tokens) disarm(token);
        return tokens;
    }

    void poke(const void* what) noexcept {
        if (!wakeups_) return;
        for (const auto& [token, armed] : armed_)
            if (armed.what.get() == what) wakeups_->fire(token);
    }

    void close() noexcept {
        if (!wakeups_) return;
        if (wakeups_->forked()) {
            // The flags are up for the parent, who still sleeps: they are not ours to lower.
            new std::unordered_map<uint64_t, Armed>(std::move(armed_));
        } else {
            watches_armed -= armed_.size();
        }
        armed_.clear();
        wakeups_.reset();
    }

  private:
    struct Armed {
        std::shared_ptr<const void> what;
        std::shared_ptr<const void> flag;  // shared by all that wait for the same
    };

    void require_open() const {
        if (!wakeups_) throw mo::RingError("the wake-ups are closed");
    }

    template <class End>
    std::shared_ptr<const void> raise(const std::shared_ptr<End>& what) {
        for (const auto& [token, armed] : armed_)
            if (armed.what == what) return armed.flag;
        return std::make_shared<typename End::WaitingFlag>(what->waiting_flag());
    }

    uint64_t arm(std::shared_ptr<const void> what, std::shared_ptr<const void> flag, mo::WaitSet sleep_on,
                 mo::WaitSet look_at) {
        const uint64_t token = ++last_token_;
        wakeups_->watch(token, std::move(sleep_on), std::move(look_at));
        armed_.emplace(token, Armed{std::move(what), std::move(flag)});
        ++watches_armed;
        return token;
    }

    void disarm(uint64_t token) noexcept { watches_armed -= armed_.erase(token); }

    std::unique_ptr<mo::Wakeups> wakeups_ = std::make_unique<mo::Wakeups>();
    std::unordered_map<uint64_t, Armed> armed_;
    uint64_t last_token_ = 0;
};

}  // namespace

void poke_watches(const void* what) noexcept {
    for (LoopWakeups* loop : everybody) loop->poke(what);
}

void bind_loops(nb::module_& m) {
    nb::class_<LoopWakeups>(m, "Wakeups", nb::is_final())
        .def(nb::init<>())
        .def_prop_ro("fd", &LoopWakeups::fd)
        .def("watch_consumer", &LoopWakeups::watch_consumer, nb::arg("consumer"))
        .def("watch_producer", &LoopWakeups::watch_producer, nb::arg("producer"))
        .def("forget", &LoopWakeups::forget, nb::arg("token"))
        .def("fired", &LoopWakeups::fired)
        .def("close", &LoopWakeups::close);
}

}  // namespace bindings
