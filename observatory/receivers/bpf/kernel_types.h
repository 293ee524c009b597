/* What links.bpf.c reads of the kernel, and no more. The names are the kernel's; where a field lies, and how large it is,
   the loader finds out from the running kernel's BTF (CO-RE), so order and gaps mean nothing here. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum bpf_map_type {
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_LRU_HASH = 9,
    BPF_MAP_TYPE_LRU_PERCPU_HASH = 10,
};

enum { BPF_ANY = 0, BPF_NOEXIST = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
    unsigned int inum;
};

struct net {
    struct ns_common ns;
};

typedef struct {
    struct net *net;
} possible_net_t;

struct net_device {
    char name[16];
    int ifindex;
    possible_net_t nd_net;
};

struct sk_buff {
    struct net_device *dev;
    unsigned int len;
    __u16 mac_header;
    unsigned char *head;
    unsigned char *data;
    char cb[48];
};

struct tcp_skb_cb {
    __u16 tcp_gso_segs;
};

struct in6_addr {
    union {
        __u8 u6_addr8[16];
    } in6_u;
};

struct sock_common {
    __be32 skc_daddr;
    unsigned short skc_family;
    possible_net_t skc_net;
    struct in6_addr skc_v6_daddr;
};

struct dst_entry {
    struct net_device *dev;
};

struct sock {
    struct sock_common __sk_common;
    struct dst_entry *sk_dst_cache;
};

struct tcp_sock {
    __u32 srtt_us;
    __u32 packets_out;
};

struct irqaction {
    unsigned int irq;
};

#pragma clang attribute pop
