/* Counts in the kernel what crosses the network interfaces of one network namespace, what TCP knows of the way to its
   peers, and the time that processors spend on interrupts. Nothing leaves the kernel until the receiver reads the maps
   (observatory/receivers/ebpf_layout.py has the same layouts).

   All programs are BTF tracepoints: they need neither tracefs nor kprobes, and are gone with the last descriptor. */
#include "kernel_types.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* The helpers used here are open to GPL-compatible programs only; Apache-2.0 is not among the words that the kernel
   knows for those, "Dual MIT/GPL" is. This file may be used under either. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";

enum { MAX_INTERFACES = 512, MAX_PEERS = 4096, NAME_BYTES = 16, BUCKETS = 128 };
enum { IPV4 = 2, IPV6 = 10 };
enum { NO_MAC_HEADER = 0xffff, MOST_MAC_BYTES = 64 };

const volatile __u32 network_namespace = 0; /* its inode number */

struct traffic {
    char name[NAME_BYTES];
    __u64 sent_bytes, sent_packets, received_bytes, received_packets;
};

struct round_trips {
    char name[NAME_BYTES];
    __u64 retransmitted_segments;
    __u64 buckets[BUCKETS]; /* by smoothed round-trip time in us: see bucket_of */
};

struct peer {
    __u32 interface;
    __u32 family;
    __u8 address[16];
};

struct way {
    char name[NAME_BYTES];
    __u64 samples, sum_us, retransmitted_segments;
};

struct interrupts {
    __u64 irq_began, irq_ns, irqs;
    __u64 softirq_began, softirq_ns, softirqs;
    __u64 irq_ns_then; /* irq_ns when the soft interrupt began: what interrupted it is not its own */
};

/* Interfaces and peers that are gone make room for new ones: hence LRU. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
    __uint(max_entries, MAX_INTERFACES);
    __type(key, __u32);
    __type(value, struct traffic);
} traffic SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, MAX_INTERFACES);
    __type(key, __u32);
    __type(value, struct round_trips);
} round_trips SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, MAX_PEERS);
    __type(key, struct peer);
    __type(value, struct way);
} peers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct interrupts);
} interrupts SEC(".maps");

/* Too large for the stack. Never written. */
static const struct round_trips no_round_trips;

static __always_inline int is_ours(struct net_device *device) {
    return device->nd_net.net->ns.inum == network_namespace;
}

static __always_inline struct traffic *traffic_of(struct net_device *device) {
    if (!device || !is_ours(device)) return 0;
    __u32 interface = device->ifindex;
    struct traffic *found = bpf_map_lookup_elem(&traffic, &interface);
    if (found) return found;
    struct traffic none = {};
    bpf_core_read_str(none.name, sizeof none.name, &device->name);
    bpf_map_update_elem(&traffic, &interface, &none, BPF_NOEXIST);
    return bpf_map_lookup_elem(&traffic, &interface);
}

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(on_sent, struct sk_buff *buffer, int result, struct net_device *device, unsigned int bytes) {
    if (result != 0) return 0; /* handed back by the driver: it comes again */
    struct traffic *counts = traffic_of(device);
    if (!counts) return 0;
    counts->sent_bytes += bytes;
    counts->sent_packets++;
    return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_received, struct sk_buff *buffer) {
    struct traffic *counts = traffic_of(buffer->dev);
    if (!counts) return 0;
    /* The driver has taken the link's header off; statistics of interfaces count it. */
    __u64 header = buffer->data - buffer->head - buffer->mac_header;
    if (buffer->mac_header == NO_MAC_HEADER || header > MOST_MAC_BYTES) header = 0;
    counts->received_bytes += buffer->len + header;
    counts->received_packets++;
    return 0;
}

/* Four buckets to a doubling: 0, 1, 2, 3, 4, 5, 6, 7, 8-9, 10-11, 12-13, 14-15, 16-19, ... us. */
static __always_inline __u32 bucket_of(__u32 us) {
    if (us < 4) return us;
    __u32 power = 0, rest = us;
    if (rest >> 16) power += 16, rest >>= 16;
    if (rest >> 8) power += 8, rest >>= 8;
    if (rest >> 4) power += 4, rest >>= 4;
    if (rest >> 2) power += 2, rest >>= 2;
    if (rest >> 1) power += 1;
    return 4 * (power - 1) + ((us >> (power - 2)) & 3);
}

static __always_inline struct net_device *device_of(const struct sock *socket) {
    struct dst_entry *route = socket->sk_dst_cache;
    return route ? route->dev : 0;
}

static __always_inline struct round_trips *round_trips_of(struct net_device *device, __u32 interface) {
    struct round_trips *found = bpf_map_lookup_elem(&round_trips, &interface);
    if (found) return found;
    bpf_map_update_elem(&round_trips, &interface, &no_round_trips, BPF_NOEXIST);
    found = bpf_map_lookup_elem(&round_trips, &interface);
    if (found) bpf_core_read_str(found->name, sizeof found->name, &device->name);
    return found;
}

static __always_inline struct way *way_of(const struct sock *socket, struct net_device *device, __u32 interface) {
    struct peer peer = {.interface = interface, .family = socket->__sk_common.skc_family};
    if (peer.family == IPV4) {
        __be32 address = socket->__sk_common.skc_daddr;
        __builtin_memcpy(peer.address, &address, sizeof address);
    } else if (peer.family == IPV6) {
        bpf_core_read(peer.address, sizeof peer.address, &socket->__sk_common.skc_v6_daddr);
    } else {
        return 0;
    }
    struct way *found = bpf_map_lookup_elem(&peers, &peer);
    if (found) return found;
    struct way none = {};
    bpf_core_read_str(none.name, sizeof none.name, &device->name);
    bpf_map_update_elem(&peers, &peer, &none, BPF_NOEXIST);
    return bpf_map_lookup_elem(&peers, &peer);
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(on_tcp_received, struct sock *socket, const struct sk_buff *buffer) {
    struct net_device *device = device_of(socket);
    if (!device || !is_ours(device)) return 0;
    struct tcp_sock *tcp = bpf_skc_to_tcp_sock(socket);
    /* Who has nothing on its way learns nothing of the round trip from what it receives. */
    if (!tcp || tcp->packets_out == 0) return 0;
    __u32 us = tcp->srtt_us >> 3; /* the kernel keeps eighths */
    if (us == 0) return 0;
    __u32 interface = device->ifindex;
    struct round_trips *times = round_trips_of(device, interface);
    __u32 bucket = bucket_of(us);
    if (times && bucket < BUCKETS) __sync_fetch_and_add(&times->buckets[bucket], 1);
    struct way *way = way_of(socket, device, interface);
    if (!way) return 0;
    __sync_fetch_and_add(&way->samples, 1);
    __sync_fetch_and_add(&way->sum_us, us);
    return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, const struct sock *socket, const struct sk_buff *buffer) {
    struct net_device *device = device_of(socket);
    if (!device || !is_ours(device)) return 0;
    __u64 segments = BPF_CORE_READ((const struct tcp_skb_cb *)&buffer->cb, tcp_gso_segs);
    if (segments == 0) segments = 1;
    __u32 interface = device->ifindex;
    struct round_trips *times = round_trips_of(device, interface);
    if (times) __sync_fetch_and_add(&times->retransmitted_segments, segments);
    struct way *way = way_of(socket, device, interface);
    if (way) __sync_fetch_and_add(&way->retransmitted_segments, segments);
    return 0;
}

static __always_inline struct interrupts *of_this_cpu(void) {
    __u32 first = 0;
    return bpf_map_lookup_elem(&interrupts, &first);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry, int irq, struct irqaction *action) {
    struct interrupts *cpu = of_this_cpu();
    if (cpu) cpu->irq_began = bpf_ktime_get_ns();
    return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit, int irq, struct irqaction *action, int handled) {
    struct interrupts *cpu = of_this_cpu();
    if (!cpu || cpu->irq_began == 0) return 0;
    cpu->irq_ns += bpf_ktime_get_ns() - cpu->irq_began;
    cpu->irqs++;
    cpu->irq_began = 0;
    return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector) {
    struct interrupts *cpu = of_this_cpu();
    if (!cpu) return 0;
    cpu->irq_ns_then = cpu->irq_ns;
    cpu->softirq_began = bpf_ktime_get_ns();
    return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector) {
    struct interrupts *cpu = of_this_cpu();
    if (!cpu || cpu->softirq_began == 0) return 0;
    __u64 all = bpf_ktime_get_ns() - cpu->softirq_began, others = cpu->irq_ns - cpu->irq_ns_then;
    cpu->softirq_ns += all > others ? all - others : 0;
    cpu->softirqs++;
    cpu->softirq_began = 0;
    return 0;
}
