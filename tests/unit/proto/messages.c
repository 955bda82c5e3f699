#include "tests/unit/proto/messages.h"

struct message_zstd messages_zstd;

struct messages_frame messages_open(const struct bytes *b)
{
    struct messages_frame f = { 0 };

    assert_int_equal(frame_decode(bytes_front(b), UINT32_MAX, &f.header), 0);
    assert_int_equal(FRAME_HEADER_BYTES + f.header.head_bytes + f.header.body_bytes,
                     bytes_len(b));
    assert_int_equal(frame_verify(bytes_front(b), &f.header), 0);
    f.head = bytes_front(b) + FRAME_HEADER_BYTES;
    assert_int_equal(message_body(&messages_zstd, &f.header, f.head + f.header.head_bytes,
                                  FRAME_MAX, &f.scratch, &f.body, &f.body_bytes),
                     0);
    return f;
}

void messages_close(struct messages_frame *f, struct bytes *b)
{
    bytes_deinit(&f->scratch);
    bytes_deinit(b);
}

void messages_text(char *dst, size_t cap)
{
    for (size_t i = 0; i < cap; i++)
        dst[i] = (char)('!' + i % 90);
    dst[cap - 1] = 0;
}

struct table_spec messages_spec(void)
{
    struct table_spec s = {
        .kind = TABLE_SPEC_DENSE,
        .dim = UINT32_MAX,
        .n_floats = UINT64_MAX,
        .seed = UINT64_MAX - 1,
        .init = TABLE_SPEC_INIT_NORMAL,
        .init_scale = -1.5e-42f,
        .optim = TABLE_SPEC_FTRL,
        .params = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -12e30f },
        .schedule = { UINT32_MAX, TABLE_SPEC_DECAY_INV_SQRT, UINT64_MAX - 3, UINT64_MAX - 4,
                      0.25f, 0.5f },
        .clip_norm = 3e38f,
        .mode = TABLE_SPEC_MODE_BSP,
        .bound = UINT32_MAX - 5,
        .storage = TABLE_SPEC_FP16,
        .row_decay = 0.0078125f,
        .limits = { .admit_touches = UINT32_MAX - 6,
                    .rare_touches = UINT32_MAX - 7,
                    .admit_clocks = UINT64_MAX - 8,
                    .idle_clocks = UINT64_MAX - 9,
                    .rare_clocks = UINT64_MAX - 10,
                    .ttl_s = UINT32_MAX - 11,
                    .victims = TABLE_SPEC_VICTIMS_RAREST,
                    .max_bytes = UINT64_MAX - 12 },
    };

    messages_text(s.name, sizeof s.name);
    return s;
}

struct hello_reply *messages_hello_reply(void)
{
    struct hello_reply *m = calloc(1, sizeof *m);

    m->version = 1;
    m->n_nodes = MESSAGE_NODES_MAX;
    m->node = 63;
    m->shards_per_node = 16;
    m->map_id = 0x123456789abcdef0;
    m->frame_max_bytes = UINT32_MAX;
    messages_text(m->text, sizeof m->text);
    for (uint32_t i = 0; i < m->n_nodes; i++)
        messages_text(m->nodes[i], sizeof m->nodes[i] - i);
    return m;
}

uint8_t *messages_bytes(size_t n, unsigned n_values)
{
    uint8_t *bytes = malloc(n);

    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(hash_mix(i) % n_values);
    return bytes;
}

void messages_sections(struct section *s, uint32_t n, const uint8_t *bytes, size_t *ret_bytes,
                       bool values)
{
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_keys = i % 7;

        s[i] = (struct section){ .table_id = UINT32_MAX - i,
                                 .op = values ? (enum section_op)(i % SECTION_OP_END) : 0,
                                 .codec = (enum codec_id)(i % CODEC_ID_END),
                                 .n_keys = n_keys,
                                 .keys = bytes + at,
                                 .key_bytes = n_keys + (i % 2) * n_keys * 9 };
        if (s[i].op == SECTION_ASSIGN_STATE) {
            s[i].codec = CODEC_FP32;
            s[i].steps = i % 2 ? SECTION_STEPS_MAX : i;
        }
        if (s[i].op == SECTION_RATE) {
            s[i].steps = section_rate_steps(0.5f);
            s[i].n_keys = n_keys = 0;
            s[i].key_bytes = 0;
        }
        if (s[i].op == SECTION_GRADIENT_AT) {
            s[i].codec = CODEC_INT8;
            s[i].steps = section_delay_steps((struct section_delay){ 0.5f, i % 2 });
        }
        s[i].k = s[i].codec == CODEC_TOPK ? 1 + i % 5 : 0;
        if (!values && i % 5 == 1)
            s[i].present = true;
        if (!values && n_keys == 0) {
            s[i].scan_bytes = 1 + i;
            s[i].cursor = UINT64_MAX - i;
        }
        if (!values && i % 5 == 3 && n_keys)
            s[i].delta = (struct section_delta){ .asked = true,
                                                 .mode = SECTION_DELTA_ONEBIT + i % 3,
                                                 .tolerance = (float)i / 8,
                                                 .base = UINT64_MAX - i,
                                                 .rows_max = UINT32_MAX - i };
        at += s[i].key_bytes;
        if (values && n_keys) {
            s[i].values = bytes + at;
            s[i].value_bytes =
                (size_t)n_keys * (s[i].codec == CODEC_TOPK ? 6 * s[i].k : 3 + i % 11);
            at += s[i].value_bytes;
        }
    }
    *ret_bytes = at;
}
