// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The programs of the fast path. See lib.rs for how they work together with nftables.
//
// ingress_pod and ingress_uplink redirect packets of learned flows. egress_pod and egress_uplink learn flows from the
// packets that nftables has marked. Every packet that is not understood here takes the normal path.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define inline __attribute__((always_inline)) inline
#define field(name, value) int(*name)[value]
#define TCP_FIN_SYN_RST 0x07

// The kernel's helpers, by their numbers.
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
    (void *)BPF_FUNC_map_update_elem;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)BPF_FUNC_skb_change_type;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags) =
    (void *)BPF_FUNC_skb_store_bytes;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) =
    (void *)BPF_FUNC_skb_load_bytes;
static long (*bpf_check_mtu)(void *skb, __u32 ifindex, __u32 *mtu, __s32 change, __u64 flags) =
    (void *)BPF_FUNC_check_mtu;
static __u64 (*bpf_jiffies64)(void) = (void *)BPF_FUNC_jiffies64;

// The next program or the network stack decides.
#define NORMAL_PATH (-1)

// The nftables chain sets this bit of a packet's mark. The same number is in rules.rs.
#define LEARN 0x02000000

// The kernel's ticks a second, which the agent sets.
const volatile __u64 ticks_per_second = 100;

// A flow is learned for one second. Then one packet takes the normal path, which checks it again, refreshes the timeouts
// of conntrack, the neighbour table and the bridge, and lets the egress program learn the flow once more.
#define LIFETIME ticks_per_second

// The agent increases this number to make all learned flows invalid.
volatile __u32 generation;

struct flow4 {
    __u32 ifindex; // of the incoming device: no other pod can send packets of this flow
    __u32 source;
    __u32 destination;
    __u32 ports;
    __u32 protocol;
};

struct flow6 {
    __u32 ifindex;
    __u32 source[4];
    __u32 destination[4];
    __u32 ports;
    __u32 protocol;
};

struct path {
    __u64 since; // in ticks
    __u32 generation;
    __u32 ifindex; // of the outgoing device
    __u8 ethernet[ETH_HLEN]; // the header that the neighbour table has given
    __u8 is_pod;             // whether the outgoing device is the host end of a pod's veth pair
    __u8 pad;
};

#define FLOWS 32768

struct {
    field(type, BPF_MAP_TYPE_LRU_HASH);
    field(max_entries, FLOWS);
    struct flow4 *key;
    struct path *value;
} flows4 SEC(".maps");

struct {
    field(type, BPF_MAP_TYPE_LRU_HASH);
    field(max_entries, FLOWS);
    struct flow6 *key;
    struct path *value;
} flows6 SEC(".maps");

struct counter {
    __u64 packets;
    __u64 bytes;
};

// What was redirected, to uplinks and to pods.
struct {
    field(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    field(max_entries, 2);
    __u32 *key;
    struct counter *value;
} redirected SEC(".maps");

struct ipv4 {
    __u8 version_and_length, tos;
    __be16 length, id, fragment;
    __u8 ttl, protocol;
    __be16 checksum;
    __u32 source, destination;
};

struct ipv6 {
    __u32 version_and_label;
    __be16 length;
    __u8 protocol, ttl;
    __u32 source[4], destination[4];
};

struct transport {
    __u32 ports;
    __u32 sequence, acknowledgement;
    __u8 offset, flags;
};

#define UDP_HEADER 8

// Whether a flow can be recognised by these bytes: TCP without a change of the connection's state, or UDP.
static inline int is_usual(const void *transport, const void *end, __u8 protocol)
{
    const struct transport *header = transport;
    if (protocol == IPPROTO_TCP)
        return (const void *)(header + 1) <= end && !(header->flags & TCP_FIN_SYN_RST);
    return protocol == IPPROTO_UDP && transport + UDP_HEADER <= end;
}

// Fills the key of an IPv4 packet without options that is no fragment and that this node may forward (TTL).
static inline int read4(struct __sk_buff *skb, struct flow4 *flow)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct ipv4 *ip = data + ETH_HLEN;
    struct transport *transport = (void *)(ip + 1);
    if ((void *)transport + UDP_HEADER > end || ip->version_and_length != 0x45 || ip->ttl <= 1)
        return 0;
    if (ip->fragment & __builtin_bswap16(0x3fff) || !is_usual(transport, end, ip->protocol))
        return 0;
    flow->source = ip->source;
    flow->destination = ip->destination;
    flow->ports = transport->ports;
    flow->protocol = ip->protocol;
    return 1;
}

// Fills the key of an IPv6 packet without extension headers.
static inline int read6(struct __sk_buff *skb, struct flow6 *flow)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct ipv6 *ip = data + ETH_HLEN;
    struct transport *transport = (void *)(ip + 1);
    if ((void *)transport + UDP_HEADER > end || ip->ttl <= 1 || !is_usual(transport, end, ip->protocol))
        return 0;
    __builtin_memcpy(flow->source, ip->source, sizeof(flow->source));
    __builtin_memcpy(flow->destination, ip->destination, sizeof(flow->destination));
    flow->ports = transport->ports;
    flow->protocol = ip->protocol;
    return 1;
}

static inline int is_fresh(const struct path *path, __u64 lifetime)
{
    return path && path->generation == generation && bpf_jiffies64() - path->since < lifetime;
}

static inline void count(struct __sk_buff *skb, __u32 to_pod)
{
    struct counter *counter = bpf_map_lookup_elem(&redirected, &to_pod);
    if (counter) {
        counter->packets += 1;
        counter->bytes += skb->len;
    }
}

// Whether the frame has the right MAC addresses already, as between two ports of a bridge.
static inline int has_header(struct __sk_buff *skb, const struct path *path)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    const __u32 *found = data, *learned = (const __u32 *)path->ethernet;
    return data + ETH_HLEN <= end && found[0] == learned[0] && found[1] == learned[1] && found[2] == learned[2];
}

static inline int redirect(struct __sk_buff *skb, const struct path *path, int from_uplink)
{
    __u32 mtu = 0;
    // The fast path does not forward from one uplink to another.
    if (!path->is_pod && (from_uplink || bpf_check_mtu(skb, path->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS)))
        return NORMAL_PATH;
    if (!has_header(skb, path) && bpf_skb_store_bytes(skb, 0, path->ethernet, ETH_HLEN, 0))
        return NORMAL_PATH;
    count(skb, path->is_pod);
    if (!path->is_pod)
        return bpf_redirect(path->ifindex, 0);
    // On a bridge the frame was for the MAC address of the other pod.
    if (skb->pkt_type != PACKET_HOST)
        bpf_skb_change_type(skb, PACKET_HOST);
    return bpf_redirect_peer(path->ifindex, 0);
}

static inline int ingress(struct __sk_buff *skb, int from_uplink)
{
    __u32 type = skb->pkt_type;
    if (type != PACKET_HOST && (from_uplink || type != PACKET_OTHERHOST))
        return NORMAL_PATH;
    if (skb->vlan_present)
        return NORMAL_PATH;
    struct path *path = 0;
    if (skb->protocol == __builtin_bswap16(ETH_P_IP)) {
        struct flow4 flow = {.ifindex = skb->ifindex};
        if (read4(skb, &flow))
            path = bpf_map_lookup_elem(&flows4, &flow);
    } else if (skb->protocol == __builtin_bswap16(ETH_P_IPV6)) {
        struct flow6 flow = {.ifindex = skb->ifindex};
        if (read6(skb, &flow))
            path = bpf_map_lookup_elem(&flows6, &flow);
    }
    return is_fresh(path, LIFETIME) ? redirect(skb, path, from_uplink) : NORMAL_PATH;
}

// The device that the flow arrives at, or 0 if it is not known.
//
// - For a packet that was routed from a bridge, the kernel names the bridge. The learned flow of the other direction leads to
//   the bridge port.
// - Outer packets, such as those of IPsec, have the mark and the incoming device of the inner packet. So a flow that leaves by
//   an uplink is learned only if the flow of the other direction leads to a pod.
static inline __u32 origin(__u32 arrived, const struct path *back, int is_pod)
{
    if (is_fresh(back, 2 * LIFETIME) && (is_pod || back->is_pod))
        return back->ifindex;
    return is_pod ? arrived : 0;
}

static inline __u32 swapped(__u32 ports)
{
    return ports >> 16 | ports << 16;
}

static inline int egress(struct __sk_buff *skb, int is_pod)
{
    if (!(skb->mark & LEARN))
        return NORMAL_PATH;
    // Otherwise a tunnel copies the mark to the outer packet.
    skb->mark &= ~LEARN;
    // Packets of this node have no incoming device.
    __u32 arrived = skb->ingress_ifindex;
    // The verifier accepts reads from skb only at constant offsets: this one must not be moved.
    asm volatile("" : "+r"(arrived));
    if (!arrived || skb->vlan_present)
        return NORMAL_PATH;
    struct path path = {
        .since = bpf_jiffies64(),
        .generation = generation,
        .ifindex = skb->ifindex,
        .is_pod = is_pod,
    };
    if (bpf_skb_load_bytes(skb, 0, path.ethernet, ETH_HLEN))
        return NORMAL_PATH;
    if (skb->protocol == __builtin_bswap16(ETH_P_IP)) {
        struct flow4 flow = {};
        if (!read4(skb, &flow))
            return NORMAL_PATH;
        struct flow4 back = {skb->ifindex, flow.destination, flow.source, swapped(flow.ports), flow.protocol};
        flow.ifindex = origin(arrived, bpf_map_lookup_elem(&flows4, &back), is_pod);
        if (flow.ifindex)
            bpf_map_update_elem(&flows4, &flow, &path, BPF_ANY);
    } else if (skb->protocol == __builtin_bswap16(ETH_P_IPV6)) {
        struct flow6 flow = {};
        if (!read6(skb, &flow))
            return NORMAL_PATH;
        struct flow6 back = {.ifindex = skb->ifindex, .ports = swapped(flow.ports), .protocol = flow.protocol};
        __builtin_memcpy(back.source, flow.destination, sizeof(back.source));
        __builtin_memcpy(back.destination, flow.source, sizeof(back.destination));
        flow.ifindex = origin(arrived, bpf_map_lookup_elem(&flows6, &back), is_pod);
        if (flow.ifindex)
            bpf_map_update_elem(&flows6, &flow, &path, BPF_ANY);
    }
    return NORMAL_PATH;
}

SEC("classifier")
int ingress_pod(struct __sk_buff *skb)
{
    return ingress(skb, 0);
}

SEC("classifier")
int ingress_uplink(struct __sk_buff *skb)
{
    return ingress(skb, 1);
}

SEC("classifier")
int egress_pod(struct __sk_buff *skb)
{
    return egress(skb, 1);
}

SEC("classifier")
int egress_uplink(struct __sk_buff *skb)
{
    return egress(skb, 0);
}

// The kernel reserves bpf_check_mtu for programs under the GPL, so this file has both licenses.
const char license_text[] SEC("license") = "GPL";
