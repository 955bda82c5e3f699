"""psd.h without its comments, as cffi reads it: make_cdef.py writes this file."""

CDEF = """
typedef struct psd psd;
typedef int64_t psd_op;
typedef int64_t psd_scan;
enum {
    PSD_EPROTO = -10001, PSD_ECORRUPT = -10002,
    PSD_ENOTABLE = -10003,
    PSD_EWIDTH = -10004, PSD_ESHARD = -10005, PSD_EDEVICE = -10006,
    PSD_ESPEC = -10007,
    PSD_EBUDGET = -10008,
    PSD_EFENCED = -10009,
    PSD_ESEQ = -10010,
    PSD_EDEADLINE = -10011,
    PSD_ENAN = -10012,
    PSD_EORDER = -10013, PSD_ECODEC = -10014, PSD_EVERSION = -10015,
    PSD_EGREETING = -10016,
    PSD_EJOB = -10017,
    PSD_ETOOBIG = -10018, PSD_ECLUSTER = -10019,
    PSD_ESTOPPING = -10020,
    PSD_EDATA = -10021,
    PSD_ESETTING = -10022,
    PSD_ENOJOIN = -10023, PSD_ECOUNT = -10024, PSD_ENOCHECKPOINT = -10025,
    PSD_EHTTP = -10026,
    PSD_ENOTFILE = -10027
};
enum { PSD_FP32, PSD_BF16, PSD_FP16, PSD_INT8, PSD_ONEBIT, PSD_TOPK };
enum { PSD_GRADIENT, PSD_ASSIGN };
enum { PSD_TICK = 1 };
enum { PSD_STATE = 1 };
typedef struct psd_rows {
    uint32_t size, table;
    uint64_t n;
    const uint64_t *keys;
    float *rows;
    uint32_t codec;
    uint32_t op;
    float topk;
    uint32_t reserved;
    uint8_t *present;
    const float *state;
    uint64_t steps;
} psd_rows;
typedef struct psd_table_info {
    uint32_t size;
    uint32_t dim;
    uint64_t n_floats;
    char name[128];
    char optimizer[24];
    float lr;
    uint32_t n_state;
} psd_table_info;
typedef struct psd_dropped {
    uint32_t size, tables;
    uint64_t rows, bytes;
} psd_dropped;
typedef struct psd_stats {
    uint32_t size, n_shards;
    uint64_t pulls, pushes, rows_pulled, rows_pushed;
    uint64_t rows_refused;
    uint64_t bytes_in, bytes_out, reconnects, resent_pushes, rejoins;
    uint64_t
        pushes_lost;
    uint64_t min_clock;
    uint64_t staleness_max;
    uint64_t wait_ns,
        push_wait_ns;
    uint64_t residual_rows, residual_bytes;
    uint64_t notices_lost;
} psd_stats;
typedef struct psd_cache_stats {
    uint32_t size, reserved;
    uint64_t hits, misses;
    uint64_t puts;
    uint64_t evictions;
    uint64_t left_out;
    uint64_t rows;
    uint64_t bytes, bytes_max;
    uint64_t oldest_age_ns, max_age_ns;
} psd_cache_stats;
const char *psd_version(void);
const char *psd_strerror(int status);
const char *psd_error(void);
int psd_open(psd **ret, const char *url, const char *options, char why[256]);
int psd_close(psd *c);
int psd_end_waits(psd *c);
int psd_notice(psd *c, char *dst, size_t n);
int psd_get_stats(psd *c, psd_stats *ret);
int psd_get_cache_stats(psd *c, psd_cache_stats *ret);
int psd_table(psd *c, const char *name, const char *spec);
int psd_get_table(psd *c, int table, psd_table_info *ret);
uint64_t psd_seed(const char *column);
uint64_t psd_key(uint64_t seed, const void *token, size_t n);
int psd_keys(uint64_t seed, const void *bytes, const int64_t *offsets, size_t n,
             uint64_t *ret_keys);
int psd_keys_int64(uint64_t seed, const int64_t *numbers, size_t n, uint64_t *ret_keys);
int64_t psd_unique(psd *c, const uint64_t *keys, size_t n, uint64_t *unique, int64_t *inverse);
int psd_pull(psd *c, uint64_t clock, const psd_rows *rows, int n, psd_op *ret_op);
int psd_wait(psd *c, psd_op op, int timeout_ms);
int psd_cancel(psd *c, psd_op op);
int psd_fd(psd *c);
psd_op psd_next(psd *c);
int psd_push(psd *c, uint64_t clock, uint32_t samples, int flags, const psd_rows *rows, int n);
int psd_flush(psd *c, int timeout_ms);
int64_t psd_assign(psd *c, const psd_rows *rows);
psd_scan psd_scan_start(psd *c, int table, int flags);
int64_t psd_scan_next(psd *c, psd_scan scan, psd_rows *ret, int timeout_ms);
int psd_scan_end(psd *c, psd_scan scan);
int psd_drop(psd *c, const char *name, psd_dropped *ret, int timeout_ms);
int64_t psd_clock(psd *c);
int64_t psd_resume(psd *c);
int psd_leave(psd *c, int timeout_ms);
int psd_checkpoint(psd *c, uint64_t *numbers, size_t n_max, int timeout_ms);
"""
