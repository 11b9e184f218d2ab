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
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

static volatile struct sockaddr_in shared; // each write counts
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

static int both;
static void *connects(void *a) {
	return (void *)(long)to(both, a);
}

static void *connects_to_path(void *name) {
	path(name, SOCK_STREAM);
	return NULL;
}

static void *closes(void *unused) {
	close(both);
	return unused;
}

// pass sends the descriptor fd over by, take receives one.
static int pass(int by, int fd) {
	char c = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {&c, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(h), &fd, sizeof fd);
	return sendmsg(by, &m, 0);
}

static int take(int by) {
	char c, control[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&c, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(by, &m, 0) < 0 || !CMSG_FIRSTHDR(&m)) return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static int unconnected(int fd) {
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	return connect(fd, &none, sizeof none);
}

// What the two kinds of flip change under the supervisor's eyes.
static int flips[2];
static volatile int over;

static void *flip_descriptor(void *unused) {
	while (!over) dup2(flips[0], 99), dup2(flips[1], 99);
	return unused;
}

static void *flip_folder(void *unused) {
	while (!over) {
		if (fchdir(flips[0]) < 0 || fchdir(flips[1]) < 0) break;
	}
	return unused;
}

static void *flip_way(void *unused) {
	while (!over) {
		renameat(flips[0], "x/y", flips[0], "elsewhere/x/y");
		renameat(flips[0], "elsewhere/x/y", flips[0], "x/y");
	}
	return unused;
}

// Connects again and again to path, which is what is granted or something else
// depending on the moment.
static int flipped(void *(*flip)(void *), const char *granted, const char *other, const char *path) {
	pthread_t thread;
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	flips[0] = open(granted, O_PATH);
	flips[1] = open(other, O_PATH);
	if (flips[0] < 0 || flips[1] < 0 || dup2(flips[0], 99) < 0) return 1;
	pthread_create(&thread, NULL, flip, NULL);
	for (int i = 0; i < 400; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		connect(fd, (struct sockaddr *)&a, sizeof a);
		close(fd);
	}
	over = 1;
	pthread_join(thread, NULL);
	puts("tried");
	return 0;
}

int main(int argc, char **argv) {
	const char *how = argv[1];
	granted = address(argv[2]);
	forbidden = address(argv[3]);
	const char *name = argc > 4 ? argv[4] : "";
	pthread_t thread;
	alarm(25); // nothing here waits as long
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
		shared.sin_family = granted.sin_family, shared.sin_addr.s_addr = granted.sin_addr.s_addr, shared.sin_port = granted.sin_port;
		pthread_create(&thread, NULL, rewrite, NULL);
		int reached = 0, refused = 0;
		for (int i = 0; i < 300; i++) {
			int fd = tcp();
			if (to(fd, (struct sockaddr_in *)&shared) == 0) reached += hello(fd);
			else if (errno == EACCES) refused++;
			close(fd);
		}
		over = 1;
		pthread_join(thread, NULL);
		printf(reached && refused ? "tried\n" : "%d reached, %d refused\n", reached, refused);
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
	if (!strcmp(how, "repair")) {
		int on = 1;
		return say(setsockopt(tcp(), IPPROTO_TCP, 19, &on, sizeof on));
	}
	if (!strcmp(how, "options")) {
		unsigned char record[8] = {7, 7, 4}; // which needs no capability
		return say(setsockopt(tcp(), IPPROTO_IP, IP_OPTIONS, record, sizeof record));
	}
	if (!strcmp(how, "routing header")) { /* of two segments: by another host to this one */
		unsigned char header[40] = {0, 4, 4, 1, 1};
		header[8 + 15] = 1;
		memcpy(header + 24, "\xfd", 1);
		return say(setsockopt(socket(AF_INET6, SOCK_STREAM, 0), IPPROTO_IPV6, 57 /* IPV6_RTHDR */, header, sizeof header));
	}
	if (!strcmp(how, "routing header, the older way")) {
		char options[64] = {0};
		return say(setsockopt(socket(AF_INET6, SOCK_STREAM, 0), IPPROTO_IPV6, 6 /* IPV6_2292PKTOPTIONS */, options, sizeof options));
	}
	if (!strcmp(how, "options of IPv6")) {
		unsigned char record[8] = {7, 7, 4}; // which needs no capability
		return say(setsockopt(socket(AF_INET6, SOCK_STREAM, 0), IPPROTO_IP, IP_OPTIONS, record, sizeof record));
	}
	if (!strcmp(how, "no family")) return say(unconnected(tcp()));
	if (!strcmp(how, "no family, connected")) {
		int fd = tcp();
		if (to(fd, &granted) < 0 || unconnected(fd) == 0) return say(0);
		int e = errno;
		if (!hello(fd)) return say(0);
		errno = e;
		return say(-1);
	}
	if (!strcmp(how, "two at once")) {
		int reached = 0;
		for (int i = 0; i < 200; i++) {
			both = tcp();
			pthread_create(&thread, NULL, connects, &forbidden);
			if (to(both, &granted) == 0) reached += hello(both);
			void *r;
			pthread_join(thread, &r);
			if (r == 0) return say(0);
			close(both);
		}
		printf(reached ? "tried\n" : "never\n");
		return 0;
	}
	if (!strcmp(how, "both granted at once")) {
		int reached = 0;
		for (int i = 0; i < 3; i++) {
			both = tcp();
			pthread_create(&thread, NULL, connects, &granted);
			to(both, &granted);
			pthread_join(thread, NULL);
			reached += hello(both);
			close(both);
		}
		printf(reached ? "tried\n" : "never\n");
		return 0;
	}
	if (!strcmp(how, "close while connecting")) {
		int reached = 0;
		for (int i = 0; i < 200; i++) {
			both = tcp();
			int other = dup(both);
			pthread_create(&thread, NULL, closes, NULL);
			int r = to(both, &granted);
			if (r < 0 && errno != EBADF) return say(-1);
			pthread_join(thread, NULL);
			if (r == 0) reached += hello(other);
			close(other);
		}
		printf("tried\n");
		return 0;
	}
	if (!strcmp(how, "passed within")) {
		int by[2], fd = tcp();
		socketpair(AF_UNIX, SOCK_STREAM, 0, by);
		if (fork() == 0) {
			int theirs = take(by[1]);
			if (to(theirs, &forbidden) == 0 || errno != EACCES) return say(0);
			return to(theirs, &granted) < 0 ? say(-1) : 0;
		}
		pass(by[0], fd);
		wait(NULL);
		if (!hello(fd)) return say(-1);
		return say(to(fd, &forbidden));
	}
	if (!strcmp(how, "passed from outside")) {
		struct sockaddr_un a = {.sun_family = AF_UNIX};
		strncpy(a.sun_path, name, sizeof a.sun_path - 1);
		int by = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(by, (struct sockaddr *)&a, sizeof a) < 0) return say(-1);
		int fd = take(by);
		if (fd < 0) return say(-1);
		return say(to(fd, &forbidden));
	}
	if (!strcmp(how, "connected by another")) {
		int fd = tcp();
		if (fork() == 0) return to(fd, &granted) < 0 ? say(-1) : 0;
		wait(NULL);
		return say(to(fd, &forbidden));
	}
	if (!strcmp(how, "polled")) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), e = epoll_create1(0), bad = -1;
		socklen_t size = sizeof bad;
		struct epoll_event v = {.events = EPOLLOUT | EPOLLIN | EPOLLET};
		epoll_ctl(e, EPOLL_CTL_ADD, fd, &v);
		epoll_wait(e, &v, 1, 0); // that it is not connected
		if (to(fd, &granted) == 0 || errno != EINPROGRESS) return say(-1);
		do {
			if (epoll_wait(e, &v, 1, 10000) != 1) return say(-1);
			if (v.events & (EPOLLERR | EPOLLHUP)) return say(0);
		} while (!(v.events & EPOLLOUT));
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &size);
		while (!(v.events & EPOLLIN))
			if (epoll_wait(e, &v, 1, 10000) != 1) return say(-1);
		errno = bad;
		printf(!bad && hello(fd) ? "ok\n" : "%d\n", bad);
		return 0;
	}
	if (!strcmp(how, "nobody there, without blocking")) return say(to(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), &granted));
	if (!strcmp(how, "connect a listener") || !strcmp(how, "own listener")) {
		struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "mine"}, b = {.sun_family = AF_UNIX};
		strncpy(b.sun_path, name, sizeof b.sun_path - 1);
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		unlink("mine");
		if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 5) < 0) return say(0);
		if (!strcmp(how, "own listener")) return path("mine", SOCK_STREAM);
		return say(connect(fd, (struct sockaddr *)&b, sizeof b));
	}
	if (!strcmp(how, "many")) {
		int last = -1, n = 0;
		for (; n < 600; n++) {
			last = tcp();
			if (last < 0 || to(last, &granted) < 0) break;
		}
		if (n != 512) printf("%d: ", n);
		return say(-1);
	}
	if (!strcmp(how, "leave while connecting")) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		both = tcp();
		for (int i = 0; i < 20; i++) pthread_create(&thread, NULL, connects, &granted);
		if (to(fd, &granted) == 0) return say(0);
		return say(-1);
	}
	if (!strcmp(how, "leave a full listener")) {
		for (int i = 0; i < 20; i++) pthread_create(&thread, NULL, connects_to_path, (void *)name);
		int fd = tcp();
		if (to(fd, &granted) < 0 || !hello(fd)) return say(-1);
		_exit(say(0) + fflush(stdout));
	}
	if (!strcmp(how, "listen")) return say(listen(tcp(), 1));
	if (!strcmp(how, "bind")) {
		struct sockaddr_in a = address("0");
		return say(bind(tcp(), (struct sockaddr *)&a, sizeof a));
	}
	if (!strcmp(how, "path")) return path(name, SOCK_STREAM);
	if (!strcmp(how, "path by a replaced descriptor")) return flipped(flip_descriptor, name, "outside", "/proc/self/fd/99");
	if (!strcmp(how, "path from a replaced folder")) return flipped(flip_folder, ".", "elsewhere", "allowed");
	if (!strcmp(how, "path up from a moved folder")) {
		mkdir("x", 0755), mkdir("x/y", 0755), mkdir("elsewhere/x", 0755);
		int here = open(".", O_PATH);
		if (chdir("x/y") < 0) return 1;
		char top[32];
		snprintf(top, sizeof top, "/proc/self/fd/%d", here);
		return flipped(flip_way, top, ".", "../../allowed");
	}
	if (!strcmp(how, "watch")) return say(inotify_add_watch(inotify_init(), name, IN_ALL_EVENTS));
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
