#include "worker/client/fleet_config.h"

#include <stdio.h>

#define CONNECT_MIN_MS 1000u

static void fill_text(char *dst, size_t n_bytes, const char *src)
{
    snprintf(dst, n_bytes, "%s", src ? src : "");
}

struct hello fleet_config_hello(const struct ps_options *options)
{
    struct hello hello = { .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .frame_flags = FRAME_FLAGS_KNOWN };

    fill_text(hello.role, sizeof hello.role, options->reader ? "reader" : "worker");
    fill_text(hello.token, sizeof hello.token, options->token);
    fill_text(hello.name, sizeof hello.name, options->name);
    return hello;
}

static struct join make_join(const struct ps_options *options, const struct ps_origin *origin)
{
    struct join join = { .rank = options->rank,
                         .n_workers = options->n_workers,
                         .incarnation = origin->incarnation,
                         .mode = options->mode,
                         .bound = options->bound,
                         .clock = origin->clock };

    fill_text(join.job, sizeof join.job, options->job);
    fill_text(join.name, sizeof join.name, options->name);
    return join;
}

struct link_config fleet_config_link(const struct ps_options *options,
                                     const struct ps_origin *origin, uint64_t spent_ms)
{
    struct link_config config = { .hello = fleet_config_hello(options),
                                  .joins = !options->reader,
                                  .join = make_join(options, origin),
                                  .acked_seq = origin->acked_seq,
                                  .sent_seq = origin->last_seq,
                                  .sent_clock = origin->clock,
                                  .give_up_ms = options->give_up_ms,
                                  .answer_ms = options->answer_ms,
                                  .compress = options->compress };

    config.connect_ms = spent_ms + CONNECT_MIN_MS < options->connect_ms
                            ? options->connect_ms - (uint32_t)spent_ms
                            : CONNECT_MIN_MS;
    return config;
}
