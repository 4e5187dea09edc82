// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The ticket: the kernel's testimony which TCP connection a socket belongs to.
//
// A process that viaductd knows calls getsockopt with a private level and the nonce that viaductd gave it. The two
// first sequence numbers of the socket's connection, and who is asking, go into a ring buffer that only viaductd reads.
// To the process the call succeeds and gives nothing. All other calls pass untouched.
//
// A socket that was ever put into repair mode gets no ticket: there a process may choose its sequence numbers, if its
// network namespace is its own. The second program takes note of such sockets.
//
// Needs no kernel headers; `make` in this directory compiles it to the committed object.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef long long s64;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE inline __attribute__((always_inline))
#define FIELD_NUMBER(name, value) int(*name)[value]
#define FIELD_TYPE(name, type) type *name

// The program's interface to the kernel, as far as it is used; stable, numbers and offsets alike.

struct socket_view {
	u32 bound_dev_if, family, type, protocol, mark, priority, src_ip4, src_ip6[4], src_port;
	u16 dst_port, unused;
	u32 dst_ip4, dst_ip6[4], state;
	s32 rx_queue_mapping;
};

struct tcp_view {
	u32 snd_cwnd, srtt_us, rtt_min, snd_ssthresh, rcv_nxt, snd_nxt, snd_una, mss_cache, ecn_flags, rate_delivered,
		rate_interval_us, packets_out, retrans_out, total_retrans, segs_in, data_segs_in, segs_out, data_segs_out,
		lost_out, sacked_out;
	u64 bytes_received, bytes_acked;
};

struct sockopt_context {
	__attribute__((aligned(8))) struct socket_view *sk;
	__attribute__((aligned(8))) void *optval;
	__attribute__((aligned(8))) void *optval_end;
	s32 level, optname;
	// Each is stored on its own; the verifier takes no wider store for both.
	volatile s32 optlen, retval;
};

// Looked up in the running kernel's type information when the program is loaded.
#define RELOCATED __attribute__((preserve_access_index))
struct ns_common {
	u32 inum;
} RELOCATED;
struct user_namespace {
	struct ns_common ns;
} RELOCATED;
struct cred {
	struct user_namespace *user_ns;
} RELOCATED;
struct socket {
	void *sk;
} RELOCATED;
typedef struct {
	struct {
		s64 counter;
	} refcnt;
} file_ref_t;
struct file {
	file_ref_t f_ref;
	struct socket *private_data;
} RELOCATED;
// Before Linux 6.13.
struct file___counted {
	struct {
		s64 counter;
	} f_count;
} RELOCATED;
struct fdtable {
	u32 max_fds;
	struct file **fd;
} RELOCATED;
struct files_struct {
	struct {
		s32 counter;
	} count;
	struct fdtable *fdt;
} RELOCATED;
struct task_struct {
	struct cred *cred;
	struct files_struct *files;
} RELOCATED;
#define EXISTS(field) __builtin_preserve_field_info(field, 2)

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const monotonic_ns)(void) = (void *)5;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static u64 (*const current_uid_gid)(void) = (void *)15;
static struct tcp_view *(*const tcp_of)(struct socket_view *sk) = (void *)96;
static void *(*const storage_get)(void *map, struct socket_view *sk, void *value, u64 flags) = (void *)107;
static s64 (*const read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static u64 (*const netns_cookie)(void *context) = (void *)122;
static void *(*const ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const ring_submit)(void *data, u64 flags) = (void *)132;
static u64 (*const ring_query)(void *ring, u64 flags) = (void *)134;
static struct task_struct *(*const current_task)(void) = (void *)158;

enum { MAP_HASH = 1, MAP_SOCKET_STORAGE = 24, MAP_RING = 27, NO_PREALLOCATION = 1, CREATE = 1 };
enum { QUIET = 1, WAKE = 2, AVAILABLE_DATA = 0 };
enum { TCP_LEVEL = 6, TCP_REPAIR = 19 };
enum { ESTABLISHED = 1, FIN_WAIT1 = 4, FIN_WAIT2 = 5, CLOSE_WAIT = 8 };

enum {
	LEVEL = 0x5641,
	// Options longer than the buffer the kernel has for programs; length 0 says that we do not want it.
	BUFFER_BYTES = 4096,
	RING_BYTES = 4 << 20,
	// One process gets so many tickets in such a time, so that none can crowd the others out of the ring.
	WINDOW_NS = 100 * 1000 * 1000,
	TICKETS_IN_WINDOW = 16384,
};

struct guest {
	u64 nonce, window_start, taken;
};

struct ticket {
	u32 process, nonce, sequence, sent, received, user;
	u64 netns, user_ns, holders;
};

struct {
	FIELD_NUMBER(type, MAP_RING);
	FIELD_NUMBER(max_entries, RING_BYTES);
} tickets SECTION(".maps");

// Written by viaductd, by process number in the first process namespace.
struct {
	FIELD_NUMBER(type, MAP_HASH);
	FIELD_NUMBER(max_entries, 65536);
	FIELD_NUMBER(map_flags, NO_PREALLOCATION);
	FIELD_TYPE(key, u32);
	FIELD_TYPE(value, struct guest);
} guests SECTION(".maps");

struct {
	FIELD_NUMBER(type, MAP_SOCKET_STORAGE);
	FIELD_NUMBER(map_flags, NO_PREALLOCATION);
	FIELD_TYPE(key, int);
	FIELD_TYPE(value, u32);
} repaired SECTION(".maps");

static int within_allowance(struct guest *guest)
{
	u64 now = monotonic_ns();
	if (now - guest->window_start > WINDOW_NS) {
		guest->window_start = now;
		guest->taken = 0;
	}
	return __sync_fetch_and_add(&guest->taken, 1) < TICKETS_IN_WINDOW;
}

// How many hold the socket: descriptors, in whatever processes, and messages between Unix sockets that carry one. 0 if
// `fd` of the calling process is not a descriptor of it.
static INLINE u64 holders_of(struct socket_view *sk, u32 fd)
{
	struct files_struct *files = current_task()->files;
	struct fdtable *table = files->fdt;
	struct file *file = 0;
	struct socket *socket = 0;
	void *of_file = 0;
	s64 references = 0;
	if (fd >= table->max_fds)
		return 0;
	read_kernel(&file, sizeof(file), table->fd + fd);
	read_kernel(&socket, sizeof(socket), &file->private_data);
	read_kernel(&of_file, sizeof(of_file), &socket->sk);
	if (of_file != sk)
		return 0;
	if (EXISTS(file->f_ref)) {
		// It counts those beyond the first.
		read_kernel(&references, sizeof(references), &file->f_ref);
		references++;
	} else {
		read_kernel(&references, sizeof(references), &((struct file___counted *)file)->f_count);
	}
	// This very call holds it, too, where another thread might close the descriptor meanwhile.
	return references - (files->count.counter > 1);
}

static INLINE int give_ticket(struct sockopt_context *context, int counts)
{
	if ((u32)context->level >> 16 != LEVEL) {
		if (context->optlen > BUFFER_BYTES)
			context->optlen = 0;
		return 1;
	}
	u32 process = current_pid_tgid() >> 32;
	struct guest *guest = map_lookup(&guests, &process);
	if (!guest || guest->nonce != (u32)context->optname)
		return 1;
	struct socket_view *sk = context->sk;
	if (!sk)
		return 1;
	u32 state = sk->state;
	if (state != ESTABLISHED && state != FIN_WAIT1 && state != FIN_WAIT2 && state != CLOSE_WAIT)
		return 1;
	struct tcp_view *tcp = tcp_of(sk);
	if (!tcp || storage_get(&repaired, sk, 0, 0) || !within_allowance(guest))
		return 1;
	struct ticket *ticket = ring_reserve(&tickets, sizeof(*ticket), 0);
	if (!ticket)
		return 1;
	ticket->process = process;
	ticket->nonce = context->optname;
	ticket->sequence = context->level & 0xffff;
	ticket->sent = tcp->snd_una - (u32)tcp->bytes_acked;
	ticket->received = tcp->rcv_nxt - (u32)tcp->bytes_received;
	ticket->user = (u32)current_uid_gid();
	ticket->netns = netns_cookie(context);
	ticket->user_ns = current_task()->cred->user_ns->ns.inum;
	// The caller says by which descriptor in place of a length.
	ticket->holders = counts ? holders_of(sk, context->optlen) : 0;
	// viaductd looks into the ring whenever an offer comes; only a ring that fills up needs it sooner.
	ring_submit(ticket, ring_query(&tickets, AVAILABLE_DATA) > RING_BYTES / 4 ? WAKE : QUIET);
	context->retval = 0;
	context->optlen = 0;
	return 1;
}

SECTION("cgroup/getsockopt") int viaduct_ticket(struct sockopt_context *context)
{
	return give_ticket(context, 1);
}

// For kernels locked down so far that no program may read their memory.
SECTION("cgroup/getsockopt") int viaduct_ticket_uncounted(struct sockopt_context *context)
{
	return give_ticket(context, 0);
}

SECTION("cgroup/setsockopt") int viaduct_repair(struct sockopt_context *context)
{
	if (context->level == TCP_LEVEL && context->optname == TCP_REPAIR) {
		if (context->sk)
			storage_get(&repaired, context->sk, 0, CREATE);
	} else if (context->optlen > BUFFER_BYTES) {
		context->optlen = 0;
	}
	return 1;
}

// The kernel lends some of the functions used to GPL-compatible programs only; the MIT licence is one such.
char licence[] SECTION("license") = "Dual MIT/GPL";
