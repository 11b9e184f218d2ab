// attack tries to reach FORBIDDEN, a server that its run is not granted, in the
// way that its first argument names, and says how that ended: "ok", or the error's
// number. GRANTED is one that it is granted.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in granted, forbidden;
static volatile int over;

static struct sockaddr_in address(const char *port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

static int say(int r) {
	if (r < 0) printf("%d\n", errno);
	else printf("ok\n");
	return 0;
}

static int tcp(void) { return socket(AF_INET, SOCK_STREAM, 0); }

static int to(int fd, struct sockaddr_in *a) { return connect(fd, (struct sockaddr *)a, sizeof *a); }

// hello reports whether the server at the other end of fd is there.
static int hello(int fd) {
	char b[16];
	return read(fd, b, sizeof b) > 0;
}

static struct sockaddr_in shared;
static void *rewrite(void *unused) {
	while (!over) {
		shared.sin_port = forbidden.sin_port;
		shared.sin_port = granted.sin_port;
	}
	return unused;
}

static int slot, spare[2];
static void *replace(void *unused) {
	for (int i = 0; !over; i++) dup2(spare[i % 2], slot);
	return unused;
}

static int family(int domain, int type, int protocol) {
	return say(socket(domain, type, protocol));
}

static int path(const char *name, int type) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, name, sizeof a.sun_path - 1);
	return say(connect(socket(AF_UNIX, type, 0), (struct sockaddr *)&a, sizeof a));
}

int main(int argc, char **argv) {
	const char *how = argv[1];
	granted = address(argv[2]);
	forbidden = address(argv[3]);
	const char *name = argc > 4 ? argv[4] : "";
	pthread_t thread;
	if (!strcmp(how, "granted")) return say(to(tcp(), &granted));
	if (!strcmp(how, "forbidden")) return say(to(tcp(), &forbidden));
	if (!strcmp(how, "fork")) {
		if (fork() == 0) {
			setsid();
			if (fork() == 0) return say(to(tcp(), &forbidden));
			wait(NULL);
			return 0;
		}
		wait(NULL);
		return 0;
	}
	if (!strcmp(how, "duplicate")) return say(to(dup(tcp()), &forbidden));
	if (!strcmp(how, "rewritten address")) {
		shared = granted;
		pthread_create(&thread, NULL, rewrite, NULL);
		for (int i = 0; i < 300; i++) {
			int fd = tcp();
			to(fd, &shared);
			close(fd);
		}
		over = 1;
		pthread_join(thread, NULL);
		printf("tried\n");
		return 0;
	}
	if (!strcmp(how, "replaced descriptor")) {
		slot = tcp();
		spare[0] = tcp();
		spare[1] = socket(AF_UNIX, SOCK_STREAM, 0);
		pthread_create(&thread, NULL, replace, NULL);
		for (int i = 0; i < 300; i++) to(slot, &forbidden);
		over = 1;
		pthread_join(thread, NULL);
		printf("tried\n");
		return 0;
	}
	if (!strcmp(how, "another after the first")) {
		int fd = tcp();
		struct sockaddr none = {.sa_family = AF_UNSPEC};
		if (to(fd, &granted) < 0 || !hello(fd)) return say(-1);
		connect(fd, &none, sizeof none);
		return say(to(fd, &forbidden));
	}
	if (!strcmp(how, "from IPv6")) {
		struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = forbidden.sin_port};
		inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.sin6_addr);
		return say(connect(socket(AF_INET6, SOCK_STREAM, 0), (struct sockaddr *)&a, sizeof a));
	}
	if (!strcmp(how, "granted from IPv6")) {
		struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = granted.sin_port};
		inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.sin6_addr);
		int fd = socket(AF_INET6, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0 || !hello(fd)) return say(-1);
		return say(0);
	}
	if (!strcmp(how, "granted without blocking")) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), bad = -1;
		socklen_t size = sizeof bad;
		if (to(fd, &granted) == 0 || errno != EINPROGRESS) return say(-1);
		struct pollfd p = {.fd = fd, .events = POLLOUT};
		poll(&p, 1, 10000);
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &size);
		if (bad) { errno = bad; return say(-1); }
		if (to(fd, &granted) < 0 && errno != EISCONN) return say(-1);
		fcntl(fd, F_SETFL, 0);
		errno = 0;
		return say(hello(fd) ? 0 : -1);
	}
	if (!strcmp(how, "forbidden without blocking")) return say(to(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), &forbidden));
	if (!strcmp(how, "nobody there")) return say(to(tcp(), &granted));
	if (!strcmp(how, "send with fast open")) return say(sendto(tcp(), "x", 1, MSG_FASTOPEN, (struct sockaddr *)&forbidden, sizeof forbidden));
	if (!strcmp(how, "message with fast open")) {
		struct iovec v = {"x", 1};
		struct msghdr m = {.msg_name = &forbidden, .msg_namelen = sizeof forbidden, .msg_iov = &v, .msg_iovlen = 1};
		return say(sendmsg(tcp(), &m, MSG_FASTOPEN));
	}
	if (!strcmp(how, "messages with fast open")) {
		struct iovec v = {"x", 1};
		struct mmsghdr m = {.msg_hdr = {.msg_name = &forbidden, .msg_namelen = sizeof forbidden, .msg_iov = &v, .msg_iovlen = 1}};
		return say(sendmmsg(tcp(), &m, 1, MSG_FASTOPEN));
	}
	if (!strcmp(how, "fast open by option")) {
		int on = 1;
		return say(setsockopt(tcp(), IPPROTO_TCP, 30, &on, sizeof on));
	}
	if (!strcmp(how, "datagrams")) return family(AF_INET, SOCK_DGRAM, 0);
	if (!strcmp(how, "datagrams of IPv6")) return family(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (!strcmp(how, "raw")) return family(AF_INET, SOCK_RAW, IPPROTO_TCP);
	if (!strcmp(how, "multipath")) return family(AF_INET, SOCK_STREAM, 262);
	if (!strcmp(how, "smc")) return family(AF_INET, SOCK_STREAM, 256);
	if (!strcmp(how, "sctp")) return family(AF_INET, SOCK_STREAM, 132);
	if (!strcmp(how, "netlink")) return family(AF_NETLINK, SOCK_RAW, 0);
	if (!strcmp(how, "packets")) return family(AF_PACKET, SOCK_RAW, 0);
	if (!strcmp(how, "vsock")) return family(40, SOCK_STREAM, 0);
	if (!strcmp(how, "crypto")) return family(38, SOCK_SEQPACKET, 0);
	if (!strcmp(how, "bluetooth")) return family(31, SOCK_RAW, 1);
	if (!strcmp(how, "uring")) {
		char params[120] = {0};
		return say(syscall(425, 4, params));
	}
#ifdef __x86_64__
	if (!strcmp(how, "32 bits")) {
		// socketcall's connect, whose memory is beneath 4 GiB.
		uint32_t *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
		memcpy(low + 16, &forbidden, sizeof forbidden);
		low[0] = tcp(), low[1] = (uint32_t)(uintptr_t)(low + 16), low[2] = sizeof forbidden;
		long r = 102;
		__asm__ volatile("int $0x80" : "+a"(r) : "b"(3L), "c"((long)(uintptr_t)low) : "memory", "r8", "r9", "r10", "r11");
		errno = -(int)r;
		return say((int)r < 0 ? -1 : 0);
	}
	if (!strcmp(how, "x32")) return say(syscall(0x40000000 | SYS_connect, tcp(), &forbidden, sizeof forbidden));
#endif
	if (!strcmp(how, "listen")) return say(listen(tcp(), 1));
	if (!strcmp(how, "bind")) {
		struct sockaddr_in a = address("0");
		return say(bind(tcp(), (struct sockaddr *)&a, sizeof a));
	}
	if (!strcmp(how, "path")) return path(name, SOCK_STREAM);
	if (!strcmp(how, "path of datagrams")) return path(name, SOCK_DGRAM);
	if (!strcmp(how, "datagram of a pair")) {
		int fds[2];
		if (socketpair(AF_UNIX, SOCK_DGRAM, 0, fds) < 0) return say(-1);
		struct sockaddr_un a = {.sun_family = AF_UNIX};
		strncpy(a.sun_path, name, sizeof a.sun_path - 1);
		return say(sendto(fds[0], "x", 1, 0, (struct sockaddr *)&a, sizeof a));
	}
	if (!strcmp(how, "abstract")) {
		struct sockaddr_un a = {.sun_family = AF_UNIX};
		strncpy(a.sun_path + 1, name, sizeof a.sun_path - 2);
		return say(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)));
	}
	if (!strcmp(how, "bad address")) return say(connect(tcp(), (struct sockaddr *)8, 16));
	if (!strcmp(how, "short address")) return say(connect(tcp(), (struct sockaddr *)&granted, 8));
	if (!strcmp(how, "long address")) return say(connect(tcp(), (struct sockaddr *)&granted, 4096));
	if (!strcmp(how, "no socket")) return say(to(0, &granted));
	return 64;
}
