#include "fabric.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "atomics.hpp"
#include "error.hpp"

namespace mo {

static_assert(sizeof(mo_link) % MO_LINE == 0 && sizeof(mo_way) % MO_LINE == 0);
static_assert(sizeof(mo_fabric_header) % MO_LINE == 0 && sizeof(mo_traffic_header) % MO_LINE == 0);

namespace {

constexpr double kMillion = 1e6;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr int64_t kDownPoll = kMillisecond;

size_t state_bytes(size_t links) {
    return round_up(sizeof(mo_fabric_header) + links * sizeof(mo_link), kPageBytes);
}
size_t traffic_bytes(size_t links) {
    return round_up(sizeof(mo_traffic_header) + 2 * links * sizeof(mo_way), kPageBytes);
}

void add(uint64_t& counter, uint64_t value) noexcept {
    std::atomic_ref<uint64_t>(counter).fetch_add(value, std::memory_order_relaxed);
}

// Evenly distributed in [-1, 1).
double noise(uint64_t seed, uint64_t count) noexcept {
    uint64_t z = seed + count * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
}

void check_version(const char* what, uint32_t magic, uint32_t wanted, uint32_t abi) {
    if (magic != wanted) throw RingError(std::string("this file is not the ") + what);
    if (abi != MO_FABRIC_ABI)
        throw RingError(std::string("the ") + what + " has layout version " + std::to_string(abi) +
                        ", this program has " + std::to_string(MO_FABRIC_ABI));
}

}  // namespace

// -- the layout ---------------------------------------------------------------------------------------------

std::shared_ptr<Fabric> Fabric::create(std::span<const mo_link_constants> links, double time_scale) {
    if (links.empty() || links.size() > MO_MAX_LINKS)
        throw RingError("a fabric has 1 to " + std::to_string(MO_MAX_LINKS) + " links, not " +
                        std::to_string(links.size()));
    if (!(time_scale >= 1e-6 && time_scale <= 1e9))
        throw RingError("a time scale is between 1e-6 and 1e9, not " + std::to_string(time_scale));
    for (size_t i = 0; i < links.size(); ++i)
        if (links[i].bandwidth_bytes_per_second == 0)
            throw RingError("link " + std::to_string(i) + " has no bandwidth");

    std::shared_ptr<Fabric> fabric(new Fabric);
    fabric->links_ = links.size();
    fabric->owner_ = true;
    const size_t bytes = state_bytes(links.size());
    fabric->state_fd_ = create_memfd("observatory-fabric", bytes);
    fabric->state_map_ = Mapping(fabric->state_fd_.get(), bytes, Access::read_write, "fabric");
    const size_t more = traffic_bytes(links.size());
    fabric->traffic_fd_ = create_memfd("observatory-traffic", more);
    fabric->traffic_map_ = Mapping(fabric->traffic_fd_.get(), more, Access::read_write, "traffic of the fabric");

    auto& header = *reinterpret_cast<mo_fabric_header*>(fabric->state_map_.data());
    header.magic = MO_FABRIC_MAGIC;
    header.abi = MO_FABRIC_ABI;
    header.links = static_cast<uint32_t>(links.size());
    header.link_bytes = sizeof(mo_link);
    header.fabric_id = random_id();
    header.time_scale_millionths = static_cast<uint64_t>(std::llround(time_scale * kMillion));
    fabric->time_scale_ = static_cast<double>(header.time_scale_millionths) / kMillion;
    for (size_t i = 0; i < links.size(); ++i) {
        mo_link& link = fabric->link(i);
        link.constants = links[i];
        link.states[0] = link.states[1] = {MO_LINK_UP, static_cast<uint64_t>(kMillion), 0};
    }
    auto& traffic = *reinterpret_cast<mo_traffic_header*>(fabric->traffic_map_.data());
    traffic.magic = MO_TRAFFIC_MAGIC;
    traffic.abi = MO_FABRIC_ABI;
    traffic.ways = static_cast<uint32_t>(2 * links.size());
    traffic.way_bytes = sizeof(mo_way);
    traffic.fabric_id = header.fabric_id;

    add_seals(fabric->state_fd_.get(), F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, "fabric");
    add_seals(fabric->traffic_fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, "traffic of the fabric");
    return fabric;
}

std::shared_ptr<Fabric> Fabric::open(int state_fd, int traffic_fd) {
    require_seals(state_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, "fabric");
    require_seals(traffic_fd, F_SEAL_SHRINK | F_SEAL_GROW, "traffic of the fabric");
    const size_t bytes = file_bytes(state_fd, "fabric");
    const size_t more = file_bytes(traffic_fd, "traffic of the fabric");
    if (bytes < sizeof(mo_fabric_header)) throw RingError("the fabric is too short to be one");
    if (more < sizeof(mo_traffic_header)) throw RingError("the traffic of the fabric is too short to be that");

    std::shared_ptr<Fabric> fabric(new Fabric);
    fabric->state_map_ = Mapping(state_fd, bytes, Access::read_only, "fabric");
    const auto& header = *reinterpret_cast<const mo_fabric_header*>(fabric->state_map_.data());
    check_version("fabric", header.magic, MO_FABRIC_MAGIC, header.abi);
    fabric->traffic_map_ = Mapping(traffic_fd, more, Access::read_write, "traffic of the fabric");
    const auto& traffic = *reinterpret_cast<const mo_traffic_header*>(fabric->traffic_map_.data());
    check_version("traffic of a fabric", traffic.magic, MO_TRAFFIC_MAGIC, traffic.abi);

    const size_t links = header.links;
    if (links == 0 || links > MO_MAX_LINKS || header.link_bytes != sizeof(mo_link) || bytes < state_bytes(links) ||
        header.time_scale_millionths == 0)
        throw RingError("the fabric's header contradicts itself");
    if (traffic.ways != 2 * links || traffic.way_bytes != sizeof(mo_way) || more < traffic_bytes(links) ||
        traffic.fabric_id != header.fabric_id)
        throw RingError("the traffic is not that of this fabric");
    fabric->links_ = links;
    fabric->time_scale_ = static_cast<double>(header.time_scale_millionths) / kMillion;
    return fabric;
}

int Fabric::state_fd() const {
    if (!state_fd_) throw RingError("an opened fabric keeps no descriptors: its creator has them");
    return state_fd_.get();
}

int Fabric::traffic_fd() const {
    state_fd();
    return traffic_fd_.get();
}

mo_link& Fabric::link(size_t link) const {
    if (link >= links_)
        throw RingError("there is no link " + std::to_string(link) + " among " + std::to_string(links_));
    auto* links = reinterpret_cast<mo_link*>(state_map_.data() + sizeof(mo_fabric_header));
    return links[link];
}

const mo_link_constants& Fabric::constants(size_t link) const { return this->link(link).constants; }

mo_way& Fabric::way(size_t way) const {
    if (way >= 2 * links_)
        throw RingError("there is no way " + std::to_string(way) + " among " + std::to_string(2 * links_));
    auto* ways = reinterpret_cast<mo_way*>(traffic_map_.data() + sizeof(mo_traffic_header));
    return ways[way];
}

size_t Fabric::on_way(size_t way) const {
    const auto now = static_cast<uint64_t>(monotonic_ns());
    size_t count = 0;
    for (const mo_seat& seat : this->way(way).seats) count += load_relaxed(seat.until_ns) > now;
    return count;
}

// Each word is loaded with acquire, so that the second look at `sequence` comes after all of them; each is stored with
// release, so that it comes after the store to `sequence` before it. (Fences would do, but ThreadSanitizer does not
// know them.)
mo_link_state Fabric::state(size_t link) const {
    const mo_link& shared = this->link(link);
    for (;;) {
        const uint64_t before = load_acquire(shared.sequence);
        const mo_link_state& from = shared.states[before & 1];
        const mo_link_state copy = {load_acquire(from.flags), load_acquire(from.bandwidth_millionths),
                                    load_acquire(from.added_latency_ps)};
        // Else it was changed meanwhile, by an owner who lives: one who died in between leaves this word alone.
        if (load_relaxed(shared.sequence) == before) return copy;
    }
}

void Fabric::set_state(size_t link, const mo_link_state& state) {
    mo_link& shared = this->link(link);
    if (!owner_) throw RingError("only the process that made a fabric changes its links: ask that one");
    if (state.flags > MO_LINK_DOWN || state.bandwidth_millionths > static_cast<uint64_t>(kMillion))
        throw RingError("a link is up, degraded or down, and has a part of its bandwidth");
    const auto write = [&](mo_link_state& to) {
        store_release(to.flags, state.flags);
        store_release(to.bandwidth_millionths, state.bandwidth_millionths);
        store_release(to.added_latency_ps, state.added_latency_ps);
    };
    const uint64_t sequence = load_relaxed(shared.sequence) & ~uint64_t{1};
    store_release(shared.sequence, sequence + 1);
    write(shared.states[0]);
    store_release(shared.sequence, sequence + 2);
    write(shared.states[1]);
}

// -- sharing ------------------------------------------------------------------------------------------------

double fair_share(double capacity, std::span<const double> caps) noexcept {
    // Whoever takes less than an equal part leaves the rest to the others: until nobody does any more.
    double left = capacity;
    size_t sharing = caps.size() + 1;
    double level = left / static_cast<double>(sharing);
    std::array<bool, MO_SEATS> content{};
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < caps.size(); ++i) {
            if (content[i] || caps[i] >= level) continue;
            content[i] = changed = true;
            left -= caps[i];
            --sharing;
        }
        level = left / static_cast<double>(sharing);
    }
    return level;
}

Mover::Mover(std::shared_ptr<Fabric> fabric, Route route) : fabric_(std::move(fabric)), route_(std::move(route)) {
    if (route_.empty()) throw RingError("a route has at least one segment");
    for (const auto& ways : route_) {
        if (ways.empty()) throw RingError("a segment of a route has at least one way");
        for (const uint32_t way : ways) fabric_->way(way);
    }
}

bool Mover::claim(const std::vector<uint32_t>& ways, int64_t now) {
    leave();
    const auto until = static_cast<uint64_t>(now + MO_QUANTUM_NS + MO_SEAT_GRACE_NS);
    for (const uint32_t number : ways) {
        mo_way& way = fabric_->way(number);
        bool seated = false;
        for (size_t i = 0; i < MO_SEATS && !seated; ++i) {
            uint64_t seen = load_relaxed(way.seats[i].until_ns);
            // A time that no seat can have was garbled by somebody, and would be kept for ever.
            if (seen > static_cast<uint64_t>(now) && seen < until + 3'600'000'000'000) continue;
            seated = compare_exchange(way.seats[i].until_ns, seen, until);
            if (seated) {
                store_relaxed(way.seats[i].cap_bytes_per_second, MO_UNKNOWN_U64);
                seats_.push_back({number, i, until});
            }
        }
        if (!seated) {
            leave();
            return false;
        }
    }
    held_until_ = static_cast<int64_t>(until);
    return true;
}

// Moves all our seats on; false when one of them was lost, and so are all of them then.
bool Mover::renew(int64_t until_ns) noexcept {
    const auto until = static_cast<uint64_t>(std::max(until_ns, held_until_));
    for (Seat& seat : seats_) {
        if (!compare_exchange(fabric_->way(seat.way).seats[seat.index].until_ns, seat.until_ns, until)) {
            seat.until_ns = 0;  // not ours to give back
            leave();
            return false;
        }
        seat.until_ns = until;
    }
    held_until_ = static_cast<int64_t>(until);
    return true;
}

void Mover::stay(int64_t until_ns) noexcept { renew(until_ns + MO_QUANTUM_NS + MO_SEAT_GRACE_NS); }

void Mover::leave() noexcept {
    for (Seat& seat : seats_)
        if (seat.until_ns != 0)
            compare_exchange(fabric_->way(seat.way).seats[seat.index].until_ns, seat.until_ns, uint64_t{0});
    seats_.clear();
    held_until_ = 0;
}

Mover::Rate Mover::rate(const std::vector<uint32_t>& ways, int64_t now) {
    std::array<double, MO_SEATS> caps;
    std::vector<double> shares(ways.size());
    Rate found{kUnlimited, kUnlimited, ways[0]};
    for (size_t w = 0; w < ways.size(); ++w) {
        const mo_link_constants& link = fabric_->constants(ways[w] / 2);
        const mo_link_state state = fabric_->state(ways[w] / 2);
        const double part =
            state.flags == MO_LINK_DOWN ? 0 : static_cast<double>(state.bandwidth_millionths) / kMillion;
        const double alone =
            static_cast<double>(link.bandwidth_bytes_per_second) * part / fabric_->time_scale() / 1e9;
        size_t others = 0;
        const mo_way& way = fabric_->way(ways[w]);
        for (size_t i = 0; i < MO_SEATS; ++i) {
            if (i == seats_[w].index || load_relaxed(way.seats[i].until_ns) <= static_cast<uint64_t>(now)) continue;
            const uint64_t cap = load_relaxed(way.seats[i].cap_bytes_per_second);
            caps[others++] = cap == MO_UNKNOWN_U64 ? kUnlimited : static_cast<double>(cap) / 1e9;
        }
        const double loss = static_cast<double>(link.sharing_loss_millionths) / kMillion;
        shares[w] = fair_share(alone / (1 + loss * static_cast<double>(others)), {caps.data(), others});
        found.alone = std::min(found.alone, alone);
        if (shares[w] < found.mine) {
            found.mine = shares[w];
            found.slowest = ways[w];
        }
    }
    // To each way: what the others on our path let us have.
    for (size_t w = 0; w < ways.size(); ++w) {
        double elsewhere = kUnlimited;
        for (size_t v = 0; v < ways.size(); ++v)
            if (v != w) elsewhere = std::min(elsewhere, shares[v]);
        store_relaxed(fabric_->way(ways[w]).seats[seats_[w].index].cap_bytes_per_second,
                      elsewhere == kUnlimited ? MO_UNKNOWN_U64 : static_cast<uint64_t>(elsewhere * 1e9));
    }
    return found;
}

// What a message meets on a segment besides its bandwidth; counts it there.
Mover::Segment Mover::look_at(const std::vector<uint32_t>& ways) {
    Segment segment;
    double overhead_ns = 0;
    double slowest = kUnlimited;
    for (const uint32_t number : ways) {
        const mo_link_constants& link = fabric_->constants(number / 2);
        const uint64_t count = std::atomic_ref<uint64_t>(fabric_->way(number).transfers)
                                   .fetch_add(1, std::memory_order_relaxed);
        const auto latency = static_cast<double>(link.latency_ps + fabric_->state(number / 2).added_latency_ps);
        const double jitter = static_cast<double>(link.jitter_ps) * noise(link.jitter_seed + (number & 1), count);
        segment.latency_ns += std::max(0.0, latency + jitter) / 1e3;
        overhead_ns += static_cast<double>(link.overhead_ps) / 1e3;
        slowest = std::min(slowest, static_cast<double>(link.bandwidth_bytes_per_second) / 1e9);
        segment.chunk = std::max<uint64_t>(segment.chunk, link.chunk_bytes);
    }
    segment.latency_ns *= fabric_->time_scale();
    segment.overhead_bytes = overhead_ns * slowest;
    return segment;
}

// Moves the bytes over one segment, starting at `t`, which is then when the last of them arrived.
bool Mover::cross(const std::vector<uint32_t>& ways, uint64_t bytes, const Sleep& sleep, Moved& moved,
                  int64_t& t) {
    const Segment segment = look_at(ways);
    const double size = static_cast<double>((bytes + segment.chunk - 1) / segment.chunk * segment.chunk);
    double left = size + segment.overhead_bytes;
    double to_count = static_cast<double>(bytes);
    double queued = 0;
    size_t slowest = ways[0];
    while (left > 0) {
        int64_t now = monotonic_ns();
        // What was not driven is not given: the others could not know that we were still there.
        if (seats_.empty() || now > held_until_) {
            const int64_t lost = std::max<int64_t>(0, now - std::max(t, held_until_));
            t = std::max(t, seats_.empty() ? now : t + lost);
            if (!claim(ways, now)) {
                if (!sleep(now + kDownPoll)) return false;
                queued += static_cast<double>(monotonic_ns() - now);
                t = std::max(t, monotonic_ns());
                continue;
            }
        }
        const Rate rate = this->rate(ways, now);
        slowest = rate.slowest;
        if (!(rate.mine > 0)) {
            leave();
            if (!sleep(now + kDownPoll)) return false;
            queued += static_cast<double>(monotonic_ns() - t);
            t = monotonic_ns();
            continue;
        }
        const double lasts = left / rate.mine;
        const int64_t quantum = std::clamp<int64_t>(static_cast<int64_t>(std::min(lasts / 16, 1e12)),
                                                    MO_QUANTUM_NS, MO_LONGEST_QUANTUM_NS);
        const int64_t horizon = std::max(t + quantum, now);
        const bool last = lasts <= static_cast<double>(horizon - t);
        const int64_t end = last ? t + static_cast<int64_t>(std::ceil(lasts)) : horizon;
        if (!renew(std::max(end, now) + MO_SEAT_GRACE_NS)) continue;
        if (end > now && !sleep(end)) {
            leave();
            return false;
        }
        const double moved_now = last ? left : rate.mine * static_cast<double>(end - t);
        queued += static_cast<double>(end - t) * (1 - rate.mine / rate.alone);
        left -= moved_now;
        const double counted = last ? to_count : std::min(to_count, std::floor(moved_now));
        to_count -= counted;
        for (const uint32_t way : ways) add(fabric_->way(way).bytes, static_cast<uint64_t>(counted));
        t = end;
    }
    add(fabric_->way(slowest).queued_ns, static_cast<uint64_t>(std::max(0.0, queued)));
    moved.queued_ns += static_cast<int64_t>(std::max(0.0, queued));
    moved.sent_ns = t;
    t += static_cast<int64_t>(std::llround(segment.latency_ns));
    return true;
}

std::optional<Moved> Mover::move(uint64_t bytes, int64_t ready_ns, const Sleep& sleep) {
    int64_t now = monotonic_ns();
    if (now > held_until_) leave();
    int64_t t = seats_.empty() ? now : std::min(now, std::max(ready_ns, free_at_));
    if (seats_.empty()) {
        while (!claim(route_[0], now)) {
            if (!sleep(now + kDownPoll)) return std::nullopt;
            now = monotonic_ns();
        }
        t = now;
    }
    Moved moved{t, t, t, 0};
    for (size_t i = 0; i < route_.size(); ++i) {
        if (i > 0) leave();
        // Only a message that is wholly there is sent on.
        if (i > 0 && t > monotonic_ns() && !sleep(t)) return std::nullopt;
        const int64_t from = t;
        if (!cross(route_[i], bytes, sleep, moved, t)) return std::nullopt;
        if (i == 0) moved.start_ns = std::min(moved.start_ns, from);
    }
    if (route_.size() > 1) leave();
    free_at_ = moved.sent_ns;
    moved.end_ns = t;
    return moved;
}

}  // namespace mo
