/* A long line between two network namespaces: a delay, a rate, a loss, where the kernel has no netem.
 *
 *   line PID PID DELAY_MS RATE_MBIT LOSS_PPM
 *
 * Makes a TUN device `line` in the namespace of each process, with the addresses 10.8.0.1 and 10.8.0.2, prints "ready" and
 * carries packets until its input ends: each waits behind those before it as the rate has it, then DELAY_MS one way. What
 * would wait for more than QUEUE_S is dropped, as a router does. A line "DELAY RATE LOSS" on standard input changes all
 * three from then on. As root. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MTU 1500
#define BATCH 64
#define QUEUE_S 0.25
/* Packets on the way in one direction: 1 Gbit/s for 3 s. */
#define SLOTS (1u << 18)

struct packet {
    double due;
    unsigned length;
    unsigned char bytes[MTU + 4];
};

struct way {
    int from, to;
    struct packet *packets;
    uint64_t in, out;
    /* When the last packet has left the sender. */
    double busy_until;
};

static double delay_s, bytes_per_second, loss;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void set(double delay_ms, double rate_mbit, double loss_ppm)
{
    delay_s = delay_ms / 1e3;
    bytes_per_second = rate_mbit * 1e6 / 8;
    loss = loss_ppm / 1e6;
}

static int device(const char *pid, const char *address, const char *peer)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    int namespace = open(path, O_RDONLY | O_CLOEXEC), control;
    if (namespace < 0 || setns(namespace, CLONE_NEWNET))
        err(1, "%s", path);
    close(namespace);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strcpy(request.ifr_name, "line");
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request) || (control = socket(AF_INET, SOCK_DGRAM, 0)) < 0)
        err(1, "/dev/net/tun");
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    const struct { unsigned long what; const char *address; } set[] = {
        {SIOCSIFADDR, address}, {SIOCSIFDSTADDR, peer}};
    for (int i = 0; i < 2; i++) {
        memset(in, 0, sizeof *in);
        in->sin_family = AF_INET;
        inet_pton(AF_INET, set[i].address, &in->sin_addr);
        if (ioctl(control, set[i].what, &request))
            err(1, "address of line");
    }
    request.ifr_mtu = MTU;
    if (ioctl(control, SIOCSIFMTU, &request))
        err(1, "MTU of line");
    request.ifr_qlen = 1000;
    ioctl(control, SIOCSIFTXQLEN, &request);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(control, SIOCSIFFLAGS, &request))
        err(1, "line");
    close(control);
    return tun;
}

/* Takes in what there is, a batch at most. */
static void take(struct way *way, double at)
{
    for (int i = 0; i < BATCH && way->in - way->out < SLOTS; i++) {
        struct packet *packet = &way->packets[way->in % SLOTS];
        ssize_t length = read(way->from, packet->bytes, sizeof packet->bytes);
        if (length <= 0)
            return;
        double begins = way->busy_until > at ? way->busy_until : at;
        if (begins - at > QUEUE_S || drand48() < loss)
            continue;
        way->busy_until = begins + length / bytes_per_second;
        packet->due = way->busy_until + delay_s;
        packet->length = length;
        way->in++;
    }
}

/* Lets out what is due; when the next one is. */
static double give(struct way *way, double at)
{
    while (way->out < way->in) {
        struct packet *packet = &way->packets[way->out % SLOTS];
        if (packet->due > at)
            return packet->due;
        if (write(way->to, packet->bytes, packet->length) < 0 && errno != EAGAIN && errno != EIO && errno != ENOBUFS)
            err(1, "write");
        way->out++;
    }
    return at + 1;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        errx(2, "usage: line PID PID DELAY_MS RATE_MBIT LOSS_PPM");
    set(atof(argv[3]), atof(argv[4]), atof(argv[5]));
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int devices[2] = {device(argv[1], "10.8.0.1", "10.8.0.2"), -1};
    /* The second path may be relative to this process's own namespaces of processes: back first. */
    if (setns(own, CLONE_NEWNET))
        err(1, "own namespace");
    devices[1] = device(argv[2], "10.8.0.2", "10.8.0.1");
    struct way ways[2];
    for (int i = 0; i < 2; i++) {
        void *memory = mmap(NULL, SLOTS * sizeof(struct packet), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            err(1, "mmap");
        ways[i] = (struct way){devices[i], devices[1 - i], memory, 0, 0, 0};
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        double at = now(), next = at + 1;
        for (int i = 0; i < 2; i++) {
            take(&ways[i], at);
            double due = give(&ways[i], now());
            next = due < next ? due : next;
        }
        struct pollfd fds[3] = {{devices[0], POLLIN, 0}, {devices[1], POLLIN, 0}, {0, POLLIN, 0}};
        double wait = next - now();
        struct timespec left = {0, wait > 0 ? (long)(wait * 1e9) % 1000000000 : 0};
        if (wait >= 1)
            left = (struct timespec){1, 0};
        if (ppoll(fds, 3, &left, NULL) > 0 && fds[2].revents) {
            char line[128];
            double delay, rate, lost;
            ssize_t length = read(0, line, sizeof line - 1);
            if (length <= 0)
                return 0;
            line[length] = 0;
            if (sscanf(line, "%lf %lf %lf", &delay, &rate, &lost) == 3)
                set(delay, rate, lost);
        }
    }
}
