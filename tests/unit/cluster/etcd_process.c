#include "tests/unit/cluster/etcd_process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define START_MS 15000u

int etcd_process_free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t n_bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n_bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static bool has_program(const char *name)
{
    const char *path = getenv("PATH");
    char list[4096], *rest = list, *folder;

    snprintf(list, sizeof list, "%s", path ? path : "");
    while ((folder = strsep(&rest, ":")) != NULL) {
        char file[4200];

        snprintf(file, sizeof file, "%s/%s", folder, name);
        if (access(file, X_OK) == 0)
            return true;
    }
    return false;
}

static void run_member(const struct etcd_process *e, int member)
{
    char client[40], peer[40], name[8], dir[80], all[200] = "", state[16];
    char cert[80], key[80], ca[80];
    size_t n = 0;

    snprintf(cert, sizeof cert, "%s/server.pem", e->dir);
    snprintf(key, sizeof key, "%s/server.key", e->dir);
    snprintf(ca, sizeof ca, "%s/ca.pem", e->dir);
    snprintf(client, sizeof client, "http%s://127.0.0.1:%d", e->is_tls ? "s" : "",
             e->ports[member]);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", e->peer_ports[member]);
    snprintf(name, sizeof name, "m%d", member);
    snprintf(dir, sizeof dir, "%s/m%d", e->dir, member);
    snprintf(state, sizeof state, "new");
    for (int i = 0; i < e->n_members; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%sm%d=http://127.0.0.1:%d",
                              i ? "," : "", i, e->peer_ports[i]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
        _exit(126);
    execlp("etcd", "etcd", "--name", name, "--data-dir", dir, "--listen-client-urls", client,
           "--advertise-client-urls", client, "--listen-peer-urls", peer,
           "--initial-advertise-peer-urls", peer, "--initial-cluster", all,
           "--initial-cluster-state", state, "--pre-vote", "--heartbeat-interval", "50",
           "--election-timeout", "500", "--unsafe-no-fsync", "--log-level", "error",
           "--auth-token-ttl", "1", "--bcrypt-cost", "4",
           e->is_tls ? "--client-cert-auth" : NULL, "--cert-file", cert, "--key-file", key,
           "--trusted-ca-file", ca, (char *)NULL);
    _exit(127);
}

/* A request, and the answer until the peer closes; how many bytes, or -1. */
static ssize_t ask(int port, const char *path, const char *body, char *dst, size_t n_bytes)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    const struct timeval patience = { .tv_sec = 1 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char request[512];
    size_t done = 0;
    ssize_t n;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    n = snprintf(
        request, sizeof request,
        "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
        path, strlen(body), body);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        send(fd, request, (size_t)n, MSG_NOSIGNAL) != n) {
        close(fd);
        return -1;
    }
    while (done < n_bytes - 1 && (n = recv(fd, dst + done, n_bytes - 1 - done, 0)) > 0)
        done += (size_t)n;
    dst[done] = '\0';
    close(fd);
    return n < 0 ? -1 : (ssize_t)done;
}

/* A linearizable read is answered: there is a leader. */
static bool is_up(const struct etcd_process *e, int member)
{
    char answer[2048];

    return ask(e->ports[member], "/v3/kv/range", "{\"key\":\"AA==\"}", answer, sizeof answer) >
               0 &&
           (strstr(answer, "\"revision\"") || strstr(answer, "user name is empty"));
}

static void await_up(const struct etcd_process *e, int member)
{
    const uint64_t until = clock_mono_ms() + START_MS;
    const struct timespec pause = { .tv_nsec = 20000000 };

    while (!is_up(e, member)) {
        if (clock_mono_ms() > until)
            fail_msg("etcd does not answer on port %d within %u ms", e->ports[member],
                     START_MS);
        nanosleep(&pause, NULL);
    }
}

bool etcd_process_post(const struct etcd_process *e, const char *path, const char *body)
{
    char answer[2048];

    return ask(e->ports[0], path, body, answer, sizeof answer) > 0;
}

static void spawn(struct etcd_process *e, int member)
{
    e->pids[member] = fork();
    assert_true(e->pids[member] >= 0);
    if (e->pids[member] == 0)
        run_member(e, member);
}

static void skip_without(const char *program)
{
    if (has_program(program))
        return;
    printf("skipped: there is no %s on PATH (Debian: etcd-server, openssl)\n", program);
    skip();
}

static void prepare(struct etcd_process *e, int n_members)
{
    size_t n;

    *e = (struct etcd_process){ .n_members = n_members };
    skip_without("etcd");
    snprintf(e->dir, sizeof e->dir, "/tmp/psd-etcd-XXXXXX");
    assert_non_null(mkdtemp(e->dir));
    for (int i = 0; i < n_members; i++) {
        e->ports[i] = etcd_process_free_port();
        e->peer_ports[i] = etcd_process_free_port();
    }
    n = (size_t)snprintf(e->url, sizeof e->url, "etcd://");
    for (int i = 0; i < n_members; i++)
        n += (size_t)snprintf(e->url + n, sizeof e->url - n, "%s127.0.0.1:%d", i ? "," : "",
                              e->ports[i]);
    snprintf(e->url + n, sizeof e->url - n, "/test");
}

void etcd_process_start(struct etcd_process *e, int n_members)
{
    prepare(e, n_members);
    for (int i = 0; i < n_members; i++)
        spawn(e, i);
    for (int i = 0; i < n_members; i++)
        await_up(e, i);
}

/* Whoever asks it waits for it. */
void etcd_process_start_tls(struct etcd_process *e)
{
    char command[128];

    skip_without("openssl");
    prepare(e, 1);
    e->is_tls = true;
    snprintf(command, sizeof command, "tests/support/certificates.sh %s", e->dir);
    assert_int_equal(system(command), 0);
    spawn(e, 0);
}

void etcd_process_restart(struct etcd_process *e, int member)
{
    spawn(e, member);
    await_up(e, member);
}

void etcd_process_signal(struct etcd_process *e, int member, int signal)
{
    assert_int_equal(kill(e->pids[member], signal), 0);
    if (signal == SIGKILL) {
        waitpid(e->pids[member], NULL, 0);
        e->pids[member] = 0;
    }
    if (signal == SIGSTOP) /* all of its threads have stopped */
        assert_int_equal(waitpid(e->pids[member], NULL, WUNTRACED), e->pids[member]);
}

/* Of "NAME":"DIGITS" in a text. */
static uint64_t number_of(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    return at ? strtoull(at + strlen(name) + 3, NULL, 10) : 0;
}

int etcd_process_leader(const struct etcd_process *e)
{
    char answer[2048];

    for (int i = 0; i < e->n_members; i++)
        if (e->pids[i] &&
            ask(e->ports[i], "/v3/maintenance/status", "{}", answer, sizeof answer) > 0 &&
            number_of(answer, "member_id") == number_of(answer, "leader"))
            return i;
    fail_msg("etcd has no leader");
    return -1;
}

void etcd_process_compact(const struct etcd_process *e, int64_t revision)
{
    char body[80], answer[2048];

    snprintf(body, sizeof body, "{\"revision\":\"%lld\",\"physical\":true}",
             (long long)revision);
    assert_true(ask(e->ports[0], "/v3/kv/compaction", body, answer, sizeof answer) > 0);
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat, (void)type, (void)ftw;
    return remove(path);
}

void etcd_process_empty(const struct etcd_process *e, int member)
{
    char dir[96];

    snprintf(dir, sizeof dir, "%s/m%d", e->dir, member);
    assert_int_equal(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void etcd_process_stop(struct etcd_process *e)
{
    for (int i = 0; i < e->n_members; i++)
        if (e->pids[i])
            etcd_process_signal(e, i, SIGKILL);
    nftw(e->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
