#include "worker/tune/trial.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/memory.h"

#define TRIAL_OF "PSWORKER_TRIAL_OF" /* the environment of a trial: the search's process id */

extern char **environ;

static void path_of(const struct trial_process *p, const char *ending,
                    char ret[static PATH_MAX + 8u])
{
    snprintf(ret, PATH_MAX + 8u, "%s.%s", p->base, ending);
}

/* ---- start ---- */

static int write_settings(const struct settings *s, const struct trial_process *p,
                          struct err *err)
{
    char path[PATH_MAX + 8u], json[PATH_MAX + 8u];
    struct settings copy = *s; /* of lists and texts it is a view */
    int status = 0, has_failed;
    FILE *out;

    path_of(p, "conf", path);
    path_of(p, "json", json);
    if (strlen(json) >= sizeof copy.json)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", json);
    memcpy(copy.json, json, strlen(json) + 1);
    out = fopen(path, "we");
    if (!out)
        return err_set(err, -errno, "%.300s cannot be written: %s", path, strerror(errno));
    settings_print_config(&settings_worker, &copy, out);
    has_failed = ferror(out);
    if (fclose(out) || has_failed)
        status = err_set(err, -EIO, "%.300s cannot be written: %s", path, strerror(errno));
    return status;
}

/* A group of its own: Ctrl-C reaches the search alone, which ends its trials. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, own;

    sigemptyset(&none);
    sigemptyset(&own);
    sigaddset(&own, SIGINT);
    sigaddset(&own, SIGTERM);
    sigaddset(&own, SIGHUP);
    sigaddset(&own, SIGPIPE);
    return posix_spawnattr_setpgroup(attributes, 0) ||
           posix_spawnattr_setsigmask(attributes, &none) ||
           posix_spawnattr_setsigdefault(attributes, &own) ||
           posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETSIGDEF);
}

/* The environment, behind n_first others; the caller's to free. The first of two variables of one name counts. */
static char **extend_environment(char *const first[], size_t n_first)
{
    size_t n = 0;
    char **all;

    while (environ[n])
        n++;
    all = memory_alloc((n_first + n + 1) * sizeof *all);
    memcpy(all, first, n_first * sizeof *all);
    memcpy(all + n_first, environ, (n + 1) * sizeof *all);
    return all;
}

/* Returns a positive errno, as posix_spawn() does. */
static int spawn_process(struct trial_process *p, const posix_spawn_file_actions_t *files,
                         const posix_spawnattr_t *attributes)
{
    char config[PATH_MAX + 8u], trial_of[64], local_rank[32],
        program[] = "psworker", command[] = "train", option[] = "--config", rank[] = "RANK=0";
    char *argv[] = { program, command, option, config, NULL }, **environment;
    int status;

    path_of(p, "conf", config);
    snprintf(trial_of, sizeof trial_of, TRIAL_OF "=%d", (int)getpid());
    snprintf(local_rank, sizeof local_rank, "LOCAL_RANK=%u", p->slot);
    environment = extend_environment((char *[]){ trial_of, rank, local_rank }, 3);
    status = posix_spawn(&p->pid, "/proc/self/exe", files, attributes, argv, environment);
    free(environment);
    return status;
}

/* Likewise. */
static int spawn(struct trial_process *p)
{
    char log[PATH_MAX + 8u];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    int status;

    path_of(p, "log", log);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    status = set_attributes(&attributes);
    if (!status)
        status = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (!status)
        status = posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    if (!status)
        status = posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC,
                                                  0600);
    if (!status)
        status = spawn_process(p, &files, &attributes);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (status)
        p->pid = 0;
    return status;
}

int trial_process_start(const struct settings *s, const char *dir, uint32_t trial,
                        uint32_t slot, struct trial_process *ret, struct err *err)
{
    int status;

    *ret = (struct trial_process){ .trial = trial, .slot = slot, .fd = -1 };
    if (snprintf(ret->base, sizeof ret->base, "%s/trial%u", dir, trial) >=
        (int)sizeof ret->base)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    status = write_settings(s, ret, err);
    if (status)
        return status;
    status = spawn(ret);
    if (status)
        return err_set(err, -status, "a process cannot be started: %s", strerror(status));
    ret->fd = (int)syscall(SYS_pidfd_open, ret->pid, 0);
    if (ret->fd >= 0)
        return 0;
    status = err_set(err, -errno, "a process cannot be watched: %s", strerror(errno));
    (void)kill(ret->pid, SIGKILL);
    (void)waitpid(ret->pid, NULL, 0);
    ret->pid = 0;
    return status;
}

void trial_process_stop(const struct trial_process *p)
{
    (void)kill(p->pid, SIGTERM);
}

/* A search that ended before the kernel was asked has left this process to another parent. */
void trial_process_follow(void)
{
    const char *search = getenv(TRIAL_OF);

    if (!search)
        return;
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != atoi(search))
        (void)raise(SIGTERM);
}

/* ---- end ---- */

static double number_of(const cJSON *line, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, name);

    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* The last line of the run, if that is its result. */
static bool read_result(const struct trial_process *p, struct trial_result *ret)
{
    char path[PATH_MAX + 8u], *text = NULL;
    bool is_result = false;
    size_t size = 0;
    FILE *in;

    path_of(p, "json", path);
    in = fopen(path, "re");
    while (in && getline(&text, &size, in) > 0) {
        cJSON *line = cJSON_Parse(text);
        const cJSON *event = cJSON_GetObjectItemCaseSensitive(line, "event");

        is_result = cJSON_IsString(event) && strcmp(event->valuestring, "result") == 0;
        *ret = (struct trial_result){ .auc = number_of(line, "auc"),
                                      .logloss = number_of(line, "logloss"),
                                      .seconds = number_of(line, "seconds") };
        cJSON_Delete(line);
    }
    free(text);
    if (in)
        fclose(in);
    return is_result;
}

/* A program's last sentence: "psworker: ..." */
static void read_why(const struct trial_process *p, int how, char why[static TRIAL_WHY_MAX])
{
    static const char prefix[] = "psworker: ";
    char path[PATH_MAX + 8u], *text = NULL;
    size_t size = 0;
    FILE *in;

    if (WIFSIGNALED(how))
        snprintf(why, TRIAL_WHY_MAX, "signal %d ended it", WTERMSIG(how));
    else
        snprintf(why, TRIAL_WHY_MAX, "it ended with exit code %d", WEXITSTATUS(how));
    path_of(p, "log", path);
    in = fopen(path, "re");
    while (in && getline(&text, &size, in) > 0) {
        text[strcspn(text, "\n")] = 0;
        if (strncmp(text, prefix, sizeof prefix - 1) == 0)
            snprintf(why, TRIAL_WHY_MAX, "%s", text + sizeof prefix - 1);
    }
    free(text);
    if (in)
        fclose(in);
}

static void remove_files(const struct trial_process *p)
{
    static const char *const endings[] = { "conf", "json", "log" };
    char path[PATH_MAX + 8u];

    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        path_of(p, endings[i], path);
        (void)unlink(path);
    }
}

/* A run that a signal stops has exit code 0, and no validation. */
static void check_result(const struct trial_result *result, bool by_logloss,
                         char why[static TRIAL_WHY_MAX])
{
    if (!isfinite(result->logloss))
        snprintf(why, TRIAL_WHY_MAX, "it ended before its last validation");
    else if (!by_logloss && !isfinite(result->auc))
        snprintf(why, TRIAL_WHY_MAX, "its validation rows have no AUC: they are of one class");
}

void trial_process_end(struct trial_process *p, bool by_logloss, struct trial_result *ret,
                       char why[static TRIAL_WHY_MAX])
{
    int how = 0;

    why[0] = 0;
    while (waitpid(p->pid, &how, 0) < 0 && errno == EINTR)
        ;
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0 || !read_result(p, ret))
        read_why(p, how, why);
    else
        check_result(ret, by_logloss, why);
    remove_files(p);
    close(p->fd);
    *p = (struct trial_process){ .fd = -1 };
}
