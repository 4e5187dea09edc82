// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The shortcut that Linux itself offers to two TCP sockets of one machine: what one of them sends goes to the other's
// queue of received messages, past the TCP and IP layers.
//
// Every connection that is established in the cgroup of the first program is noted by its addresses, once an end. The
// second sees each message sent and hands it to the end whose addresses are the sender's, mirrored. Both ends must be
// in the cgroup: a message whose far end is not known is refused, since by TCP later ones could overtake it.
//
// Needs no kernel headers; `make` in this directory compiles it to the committed object.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define FIELD_NUMBER(name, value) int(*name)[value]
#define FIELD_TYPE(name, type) type *name

// The program's interface to the kernel, as far as it is used; stable, numbers and offsets alike. Addresses and the far
// port are in network byte order, the near port is in that of the machine.

struct event {
	u32 operation, arguments[4], family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port;
};

struct message {
	__attribute__((aligned(8))) void *data;
	__attribute__((aligned(8))) void *data_end;
	u32 family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port, size;
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const note)(struct event *event, void *map, void *key, u64 flags) = (void *)70;
static long (*const redirect)(struct message *message, void *map, void *key, u64 flags) = (void *)71;

enum { MAP_PER_CPU_ARRAY = 6, MAP_SOCKETS = 18 };
enum { ACTIVE_ESTABLISHED = 4, PASSIVE_ESTABLISHED = 5 };
enum { IPV4 = 2, TO_RECEIVER = 1, PASS = 1 };

struct end {
	u32 remote_ip4, local_ip4, remote_port, local_port;
};

struct {
	FIELD_NUMBER(type, MAP_SOCKETS);
	FIELD_NUMBER(max_entries, 4096);
	FIELD_TYPE(key, struct end);
	FIELD_TYPE(value, u32);
} ends SECTION(".maps");

// Bytes handed over so far.
struct {
	FIELD_NUMBER(type, MAP_PER_CPU_ARRAY);
	FIELD_NUMBER(max_entries, 1);
	FIELD_TYPE(key, u32);
	FIELD_TYPE(value, u64);
} carried SECTION(".maps");

SECTION("sockops") int viaduct_note(struct event *event)
{
	u32 operation = event->operation;
	if ((operation != ACTIVE_ESTABLISHED && operation != PASSIVE_ESTABLISHED) || event->family != IPV4)
		return 0;
	struct end end = {
		.remote_ip4 = event->remote_ip4,
		.local_ip4 = event->local_ip4,
		.remote_port = __builtin_bswap32(event->remote_port),
		.local_port = event->local_port,
	};
	note(event, &ends, &end, 0);
	return 0;
}

SECTION("sk_msg") int viaduct_redirect(struct message *message)
{
	struct end far = {
		.remote_ip4 = message->local_ip4,
		.local_ip4 = message->remote_ip4,
		.remote_port = message->local_port,
		.local_port = __builtin_bswap32(message->remote_port),
	};
	u32 size = message->size, first = 0;
	long verdict = redirect(message, &ends, &far, TO_RECEIVER);
	u64 *bytes = map_lookup(&carried, &first);
	if (bytes && verdict == PASS)
		*bytes += size;
	return verdict;
}

// The kernel lends some of the functions used to GPL-compatible programs only; the MIT licence is one such.
char licence[] SECTION("license") = "Dual MIT/GPL";
