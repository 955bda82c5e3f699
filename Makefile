# Build and check everything. `make help` lists what there is.
#
# One Makefile, no recursion into folders: a source file is built because it stands in a
# folder, so adding one needs no edit here. Every variant has a folder of its own under
# build/, so switching between them rebuilds nothing.

VARIANT ?= release
CC      ?= cc
CXX     ?= c++
PREFIX  ?= /usr/local
DESTDIR ?=
BUILD   ?= build
B        = $(BUILD)/$(VARIANT)
VERSION  = 0.1.0

# What a Debian 12 machine needs to build and test this, and why is in README.md.
APT_BUILD = build-essential pkg-config libuv1-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler \
            libopenblas-dev libzstd-dev zlib1g-dev libmicrohttpd-dev libgnutls28-dev libinih-dev libcjson-dev libsystemd-dev \
            libxxhash-dev libisal-dev libcurl4-openssl-dev libssl-dev
APT_TEST  = libcmocka-dev python3 python3-numpy python3-pytest python3-pytest-timeout python3-pytest-xdist zstd curl \
            systemd groff-base etcd-server python3-yaml
# The Python package and its wheel. Tests of psd.torch are skipped without python3-torch, which is large.
APT_PYTHON = python3-cffi python3-setuptools python3-wheel python3-pip python3-venv
APT_LINT  = clang clang-format binutils universal-ctags
APT_FUZZ  = clang libclang-rt-dev
# What builds the Debian packages; what looks at them, and boots a machine that installs them.
APT_DEB   = debhelper dh-python python3-setuptools python3-wheel
APT_DEB_TEST = lintian systemd-container

# What Debian builds its packages with (dpkg-buildflags, hardening=+all). HARDEN= is without, to measure what it costs.
HARDEN   = -fstack-protector-strong -fstack-clash-protection -fcf-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fPIE
RELRO    = -Wl,-z,relro,-z,now,-z,noexecstack,-z,shstk
flags.release = -O3 -march=x86-64-v2 -g $(HARDEN)
flags.debug   = -O0 -g3
flags.asan    = -O1 -g1 -DPS_FAULTS -fsanitize=address,undefined -fno-sanitize-recover=all
flags.tsan    = -O1 -g1 -DPS_FAULTS -fsanitize=thread
flags.cover   = -O1 -g
# Of the kernels alone: what emulates a GPU, and the tests, need no counters, and run three times as fast without.
flags_cu.cover = -O1 --coverage
# With CC=clang; tests/fuzz/run.sh says so. Its pointer-overflow minds NULL + 0, which an empty buffer has.
flags.fuzz    = -O1 -g -DPS_FAULTS -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize=pointer-overflow \
                -fno-sanitize-recover=all

# A warning ends a build, but not one on a machine whose compiler nobody here has met (tests/gpu/check.sh): WERROR= there.
WERROR   = -Werror
PKGS     = libuv libssl libcrypto libprotobuf-c libzstd zlib openblas libmicrohttpd gnutls inih libcjson libsystemd libxxhash
WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wvla -Wpointer-arith -Wwrite-strings $(WERROR)
# -ffp-contract=off: a*b+c stays two roundings, so that every build ends in the same bits.
# -fno-math-errno, -fno-trapping-math change no result: without them no square root and no choice between two
# quotients becomes a vector.
CFLAGS  += -std=c17 -D_GNU_SOURCE -DPS_VERSION='"$(VERSION)"' -I. -I$(B)/gen -Itests/emu/include $(WARN) -fno-omit-frame-pointer \
           -ffp-contract=off -fno-math-errno -fno-trapping-math $(flags.$(VARIANT)) $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDFLAGS += $(filter -fsanitize=% --coverage,$(flags.$(VARIANT)) $(flags_cu.$(VARIANT))) $(if $(HARDEN),$(if $(filter release,$(VARIANT)),$(RELRO)))
# 250 test programs with a sanitizer: gold links them in half the time. Where there is none, ld does.
LDFLAGS += $(if $(filter asan tsan,$(VARIANT)),$(if $(shell command -v ld.gold),-fuse-ld=gold))
LDLIBS  += $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lisal -lpthread -lm

# Kernels, and the tests' emulation of a GPU: C++ as far as CUDA demands it.
CXXFLAGS += $(filter-out -std=c17 -Wstrict-prototypes -Wmissing-prototypes,$(CFLAGS)) -std=c++17 -fno-exceptions -fno-rtti

PROGRAMS = $(addprefix $(B)/bin/,psd psworker psctl psbench)
MODULES  = common common/http proto server/core server/net server/requests server/checkpoint server/wal server/recovery server/replication server/admin server/cluster server \
           worker/client worker/libpsd worker/data worker/compute worker/model worker/cache worker worker/serve worker/report worker/tune deploy/psctl
mains    = server/main.c worker/main.c deploy/psctl/main.c
src      = $(filter-out $(mains),$(sort $(wildcard $(1)/*.c)))
lib      = $(B)/lib/$(subst /,_,$(1)).a
libs     = $(foreach r,$(1),$(call lib,$(r)))
# Folders may call one another, as worker and worker/report do: their order does not matter.
archives = -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

# What each kind of unit test links: its own folder and those below it.
link.common = common
link.proto  = proto common
link.core   = server/core proto common
link.net    = server/net server/core proto common
link.checkpoint = server/checkpoint server/core proto common
link.wal    = server/wal server/checkpoint server/core proto common
link.cluster = server/cluster common
link.recovery = server/recovery server/wal server/checkpoint server/core proto common
link.replication = server/replication server/recovery server/wal server/checkpoint server/core proto common
link.admin  = server/admin common/http server/core proto common
link.client = worker/client proto common
link.libpsd = worker/libpsd worker/client proto common
link.data   = worker/data common
link.model  = worker/model worker/compute worker/data server/core proto common
link.worker = worker/serve worker/tune worker worker/report worker/cache worker/model worker/compute worker/data worker/client server/recovery server/wal server/checkpoint server/core proto common/http common
link.psctl  = deploy/psctl worker/client server server/cluster server/recovery server/wal server/checkpoint server/core proto common
link.psd    = server server/cluster server/requests server/net server/replication server/recovery server/wal server/checkpoint server/admin common/http server/core proto common

all: $(PROGRAMS) libpsd cuda-plugin  ## build every program of this VARIANT (release, debug, asan, tsan)

$(B)/bin/psd: $(B)/server/main.o $(call libs,$(link.psd))
# For etcd: server/cluster/etcd_http.c. libpsd has none of it.
$(B)/bin/psd $(B)/bin/psworker $(B)/bin/psctl $(B)/bin/psbench $(B)/unit/cluster/% $(B)/unit/psctl/%: LDLIBS += -Wl,--as-needed -lcurl
$(B)/bin/psworker: $(B)/worker/main.o $(call libs,server/cluster $(link.worker))
$(B)/bin/psctl: $(B)/deploy/psctl/main.o $(call libs,$(link.psctl))
$(B)/bin/psbench: $(patsubst %.c,$(B)/%.o,$(wildcard tests/bench/*.c)) $(call libs,worker/client server/cluster server/core proto common)

$(B)/bin/bench-data: $(B)/tests/bench-data/bench_data.o $(call libs,$(link.data))
$(B)/bin/bench-feed: $(B)/tests/bench-data/bench_feed.o $(call libs,$(link.data))
$(B)/bin/bench-client: $(B)/tests/bench-client/bench_client.o $(call libs,$(link.libpsd))
$(B)/bin/bench-cache: $(B)/tests/bench-client/bench_cache.o $(call libs,$(link.libpsd))
$(B)/bin/bench-unique: $(B)/tests/bench-client/bench_unique.o $(call libs,common)
$(B)/bin/random-calls: $(B)/tests/random-calls/random_calls.o $(call libs,$(link.libpsd))
$(B)/bin/starved: $(B)/tests/random-calls/starved.o $(call libs,$(link.libpsd))
$(B)/bin/bench-log: $(patsubst %.c,$(B)/%.o,$(wildcard tests/bench-log/*.c)) $(call libs,$(link.recovery))
$(B)/bin/bench-store: $(B)/tests/bench-store/bench_store.o $(call libs,$(link.recovery))
# The simulation: all of psd but its main(), and the client library, with libuv's functions from tests/sim and the functions of
# SIM_WRAPS replaced or listened to there.
SIM_WRAPS = clock_unix_ms clock_mono_ms clock_mono_ns log_line_write data_dir_lock_acquire data_dir_lock_release data_dir_lock_abandon close fcntl ioctl \
            setsockopt shutdown pthread_sigmask wal_queue_init wal_queue_append wal_queue_close_gap wal_writer_open wal_writer_report \
            recover_shard_run shard_set_events shard_pull_begin shard_pull_end reply_queue_send reply_queue_drop connection_send \
            checkpoint_commit client_state_add_pushes client_state_ack membership_join membership_suspect membership_advance \
            suspects_ask suspects_has_update follower_init follower_add follower_deinit copy_prepare copy_next record_ring_init \
            shard_threads_serve standby_rebuilt sync_step sync_note_write terms_write terms_random arithmetic_fingerprint \
            message_write_fetch message_read_fetch_reply fstat pread
$(B)/bin/sim: LDFLAGS += $(addprefix -Wl$(comma)--wrap=,$(SIM_WRAPS))
$(B)/bin/sim: LDLIBS := $(filter-out -luv,$(LDLIBS))
$(B)/bin/sim: $(patsubst %.c,$(B)/%.o,$(wildcard tests/sim/*.c)) $(call libs,worker/client $(link.psd))
$(B)/bin/bench-step: $(patsubst %.c,$(B)/%.o,$(wildcard tests/bench-step/*.c)) $(call libs,worker/model worker/compute worker/data proto common)

$(B)/bin/%:
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) $(if $(filter -fPIE,$(flags.$(VARIANT))),-pie) -o $@ $(filter %.o,$^) $(archives) $(LDLIBS)

# ---- libpsd: the same sources as position-independent code, in objects of their own (README.md of worker/libpsd) ----

LIBPSD_SONAME = libpsd.so.1
LIBPSD_MAP    = worker/libpsd/libpsd.map
libpsd_src    = $(foreach r,worker/libpsd worker/client proto common,$(call src,$(r)))
libpsd_o      = $(patsubst %.c,$(B)/pic/%.o,$(libpsd_src)) $(B)/pic/gen/proto/ps.pb-c.o
LIBPSD_PKGS   = libuv libprotobuf-c libzstd libxxhash libisal libssl libcrypto
APT_LIBPSD    = libuv1-dev libprotobuf-c-dev libzstd-dev libxxhash-dev libisal-dev libssl-dev
pic_flags     = $(filter-out -fPIE,$(CFLAGS)) -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections

libpsd: $(B)/lib/libpsd.so $(B)/lib/libpsd.a $(B)/lib/psd.pc ## the C library: libpsd.so.1, libpsd.a, psd.pc

$(B)/pic/gen/%.o: $(B)/gen/%.c
	@mkdir -p $(@D)
	@$(CC) $(filter-out -Wconversion -Wpedantic,$(pic_flags)) -c -o $@ $<

$(B)/pic/%.o: %.c | $(B)/gen/proto/ps.pb-c.c
	@mkdir -p $(@D)
	@echo "  PIC  $@"
	@$(CC) $(pic_flags) -MMD -MP -c -o $@ $<

$(B)/lib/$(LIBPSD_SONAME): $(libpsd_o) $(LIBPSD_MAP)
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) -shared -Wl,-soname,$(LIBPSD_SONAME) -Wl,--version-script=$(LIBPSD_MAP) \
	    $(if $(findstring sanitize,$(LDFLAGS)),,-Wl$(comma)--no-undefined) -Wl,--gc-sections -Wl,--as-needed \
	    -o $@ $(filter %.o,$^) $(shell pkg-config --libs $(LIBPSD_PKGS)) -lpthread -lm

$(B)/lib/libpsd.so: $(B)/lib/$(LIBPSD_SONAME)
	@ln -sf $(LIBPSD_SONAME) $@

# One object of all that the public functions need, whose other names are local: they meet nobody's.
$(B)/lib/libpsd.a: $(libpsd_o) $(LIBPSD_MAP)
	@mkdir -p $(@D)
	@echo "  AR   $@"
	@sed -n 's/^ *\(psd_[a-z0-9_]*\);$$/\1/p' $(LIBPSD_MAP) >$(B)/lib/libpsd.names
	@ld -r --gc-sections $$(sed 's/^/-u /' $(B)/lib/libpsd.names) -o $(B)/lib/libpsd.o $(filter %.o,$^)
	@objcopy --keep-global-symbols=$(B)/lib/libpsd.names --strip-unneeded $(B)/lib/libpsd.o
	@rm -f $@
	@ar rcs $@ $(B)/lib/libpsd.o

$(B)/lib/psd.pc: worker/libpsd/psd.pc.in Makefile
	@mkdir -p $(@D)
	@sed -e 's|@version@|$(VERSION)|' -e 's|@requires@|$(LIBPSD_PKGS)|' $< >$@

# ---- the Python package: one wheel with libpsd and the libraries that libpsd needs (worker/python/README.md) ----

PYTHON = /usr/bin/python3
WHEEL  = $(B)/wheel/psd-$(VERSION)-py3-none-linux_x86_64.whl
PY_SRC = $(shell find worker/python -name '*.py' -o -name '*.pyi' -o -name '*.toml' -o -name py.typed) worker/python/README.md

wheel: $(WHEEL) ## the Python package, as one file for pip; needs no network

# It finds the libraries beside it, whatever the machine has.
$(B)/wheel/lib/$(LIBPSD_SONAME): $(libpsd_o) $(LIBPSD_MAP)
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) -shared -Wl,-soname,$(LIBPSD_SONAME) -Wl,--version-script=$(LIBPSD_MAP) -Wl,--no-undefined -Wl,--gc-sections \
	    -Wl,--as-needed -Wl,-rpath,'$$ORIGIN' -s -o $@ $(filter %.o,$^) $(shell pkg-config --libs $(LIBPSD_PKGS)) -lpthread -lm

$(WHEEL): $(B)/wheel/lib/$(LIBPSD_SONAME) $(PY_SRC)
	@$(PYTHON) -c 'import setuptools, pip' 2>/dev/null || \
	    { echo "packages are missing: as root, run: apt-get install -y $(APT_PYTHON) python3-numpy" >&2; exit 1; }
	@echo "  WHEEL $@"
	@rm -rf $(B)/wheel/stage && mkdir -p $(B)/wheel/stage && cp -r worker/python/psd worker/python/setup.py worker/python/pyproject.toml \
	    worker/python/README.md $(B)/wheel/stage && find $(B)/wheel/stage -name __pycache__ -prune -exec rm -r {} +
	@mkdir -p $(B)/wheel/stage/psd/lib && cp $< $(B)/wheel/stage/psd/lib
	@ldd $< | sed -n 's,.* => \(/.*/lib\(uv\|protobuf-c\|zstd\|xxhash\|isal\|ssl\|crypto\)\.so\.[0-9]*\) .*,\1,p' | xargs cp -L -t $(B)/wheel/stage/psd/lib
	@cd $(B)/wheel/stage && PSD_VERSION=$(VERSION) $(PYTHON) -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-index --no-deps -w .. .
	@touch $@

define module_lib
$(call lib,$(1)): $(patsubst %.c,$(B)/%.o,$(call src,$(1))) $(if $(filter proto,$(1)),$(B)/gen/proto/ps.pb-c.o)
endef
$(foreach r,$(MODULES),$(eval $(call module_lib,$(r))))

$(B)/lib/%.a:
	@mkdir -p $(@D)
	@rm -f $@
	@ar rcs $@ $^

$(B)/gen/proto/ps.pb-c.c: proto/ps.proto
	@pkg-config --exists $(PKGS) && command -v protoc-c >/dev/null || \
	    { echo "packages are missing: run \`make build-deps\` first" >&2; exit 1; }
	@mkdir -p $(@D)
	@protoc-c --c_out=$(B)/gen $<

$(B)/gen/proto/ps.pb-c.o: $(B)/gen/proto/ps.pb-c.c
	@$(CC) $(filter-out -Wconversion -Wpedantic,$(CFLAGS)) -c -o $@ $<

# .incbin is no #include: the compiler does not tell make about it.
$(B)/server/admin/page.o: $(wildcard server/admin/page/*.* server/admin/page/uplot/*)

$(B)/%.o: %.c | $(B)/gen/proto/ps.pb-c.c
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(CFLAGS) $(cflags.$<) -MMD -MP -c -o $@ $<

# The GPU's half of psworker, opened at run time (worker/cuda/README.md). It is the same for all variants, and asks of the
# machine where it runs for the driver and cublasLt alone. NVCC= leaves it out.
NVCC     ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA      = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_LIB := $(firstword $(if $(CUDA),$(wildcard $(CUDA)/lib64/libcublasLt.so $(CUDA)/targets/x86_64-linux/lib/libcublasLt.so)))
# The last resort: PyTorch's wheels have it too, with its header beside it and no name without a version.
CUDA_WHEEL := $(if $(CUDA),$(if $(CUDA_LIB),,$(shell tests/gpu/wheel.sh)))
CUDA_LIB := $(or $(CUDA_LIB),$(CUDA_WHEEL))
CUDA_LACK = $(if $(CUDA),$(if $(CUDA_LIB),,libcublasLt),nvcc)
CUDA_HEADERS = $(if $(CUDA_WHEEL),$(abspath $(dir $(CUDA_WHEEL))/../include))
CUDA_LINK = -Wl,-rpath,$(patsubst %/,%,$(dir $(CUDA_LIB))) -Wl,-rpath,/usr/local/cuda/lib64 \
            $(patsubst %,-L%,$(wildcard $(CUDA)/lib64 $(CUDA)/targets/x86_64-linux/lib)) -lcudart_static $(CUDA_LIB) -ldl -lrt -lpthread
comma     = ,
harden_so = $(filter-out -fPIE,$(HARDEN))
CUDA_FLAGS = -std=c++17 -O3 -I. $(CUDA_HEADERS:%=-I%) --fmad=false -lineinfo $(if $(WERROR),-Werror all-warnings) \
             -Xptxas -warn-spills,-warn-lmem-usage$(if $(WERROR),$(comma)-Werror) \
             -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-ffp-contract=off $(harden_so:%=-Xcompiler %) \
             $(foreach a,80 90,-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_90,code=compute_90
cuda_objects = $(patsubst %,$(BUILD)/cuda/%.o,$(wildcard worker/cuda/*.cu worker/cuda/*.c) common/memory.c common/status.c)

ifeq ($(CUDA_LACK),)
cuda-plugin: $(B)/bin/psworker_cuda.so
else
cuda-plugin:
	@echo "  no $(CUDA_LACK): psworker_cuda.so is left out, psworker computes on the CPU"
endif

$(B)/bin/psworker_cuda.so: $(BUILD)/cuda/psworker_cuda.so
	@mkdir -p $(@D)
	@cp $< $@

$(BUILD)/cuda/psworker_cuda.so: $(cuda_objects) worker/cuda/exports.map
	@echo "  LINK $@"
	@$(CXX) -shared -static-libstdc++ -static-libgcc $(RELRO) -Wl,--version-script=worker/cuda/exports.map -Wl,--no-undefined \
	    -Wl,--gc-sections -o $@ $(filter %.o,$^) $(CUDA_LINK)

$(BUILD)/cuda/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  NVCC $@"
	@$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(BUILD)/cuda/%.c.o: %.c
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) -std=c17 -D_GNU_SOURCE -I. $(CUDA_HEADERS:%=-isystem %) -isystem $(CUDA)/include $(WARN) -O2 -g -fPIC $(harden_so) -fvisibility=hidden \
	    -ffp-contract=off 	    -idirafter tests/gpu/missing $(CUDA_TESTS) -MMD -MP -c -o $@ $<

# What the tests of a folder share: every .c in it that is no test, and those of the folders that helpers.FOLDER names.
shared   = $(filter-out tests/unit/$(1)/test_%,$(wildcard tests/unit/$(1)/*.c))
fixtures = $(patsubst %.c,$(B)/%.o,$(foreach r,$(1) $(helpers.$(1)),$(call shared,$(r))))
helpers.recovery = core checkpoint
helpers.replication = core
helpers.psctl    = core checkpoint
helpers.psd      = net core recovery
helpers.libpsd   = client
helpers.worker   = model
helpers.cuda     = model

# The tests of tests/unit/cuda that can do with a real GPU, too (tests/gpu/README.md). They ask for nvcc, a C compiler, cublasLt and the
# GPU, and for no other library.
GPU_TESTS = $(patsubst %,$(BUILD)/cuda/unit/test_%,bags elementwise sums project dedup upload decode interact bf16 encode update gemm buffer_sets model model_bf16 device_push data_parallel)
gpu_files = tests/gpu/real.c tests/gpu/blas.c $(filter-out worker/compute/blas.c,$(call src,worker/compute)) $(call src,worker/model) \
            $(wildcard proto/codec*.c) worker/data/batch.c
$(BUILD)/cuda/tests/%.o: CUDA_TESTS = -DLAB_GPU -Itests/gpu/include
$(BUILD)/cuda/unit/%: $(BUILD)/cuda/tests/unit/cuda/%.c.o $(patsubst %,$(BUILD)/cuda/%.o,$(gpu_files) $(call shared,cuda) $(call shared,model)) \
    $(cuda_objects)
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CXX) -o $@ $(filter %.o,$^) $(CUDA_LINK) -lm

# What make gpu-check runs beside them.
GPU_PROGRAMS = $(addprefix $(BUILD)/cuda/gpu/,facts products bench)
$(addprefix $(BUILD)/cuda/gpu/,facts products): $(BUILD)/cuda/gpu/%: $(BUILD)/cuda/tests/gpu/%.cu.o
$(BUILD)/cuda/gpu/bench: $(patsubst %,$(BUILD)/cuda/%.o,$(filter-out tests/gpu/real.c,$(gpu_files)) tests/gpu/bench.c tests/gpu/bench_model.c tests/gpu/bench_rows.c \
    tests/gpu/op_monitor.c) $(cuda_objects)
$(GPU_PROGRAMS):
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CXX) -o $@ $(filter %.o,$^) $(CUDA_LINK) -lm

# The CUDA half on the emulated device (tests/emu): .cu is C++ then, and the worker's C is compiled for it too.
EMU      = $(patsubst %,$(B)/emu/%.o,$(wildcard worker/cuda/*.cu worker/cuda/*.c tests/emu/*.c tests/emu/*.cpp))
EMU_ON   = -DPS_EMU -Itests/emu/include -fPIC
$(B)/lib/emu_cuda.a: $(EMU)

# The plug-in on the emulated device, for tests of psworker.
emu-plugin: $(B)/emu/psworker_cuda.so
$(B)/emu/psworker_cuda.so: $(EMU) $(patsubst %,$(B)/emu/%.o,common/memory.c common/status.c)
	@$(CXX) $(LDFLAGS) -shared -Wl,--version-script=worker/cuda/exports.map -o $@ $^ -lpthread -lm

$(B)/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "  CXX  $@"
	@$(CXX) $(CXXFLAGS) $(EMU_ON) -MMD -MP -c -o $@ $<

define emu_object
$(B)/emu/%.$(1).o: %.$(1) | $(B)/gen/proto/ps.pb-c.c
	@mkdir -p $$(@D)
	@echo "  EMU  $$@"
	@$(2) $(EMU_ON) -MMD -MP -c -o $$@ $(3) $$<
endef
$(eval $(call emu_object,c,$$(CC) $$(CFLAGS)))
$(eval $(call emu_object,cpp,$$(CXX) $$(CXXFLAGS)))
$(eval $(call emu_object,cu,$$(CXX) $$(CXXFLAGS) $$(flags_cu.$$(VARIANT)),-x c++))

# What counts the allocations of real processes, makes their disk slow or bad, notes what it has, sets their clock, or sends a late
# signal, for tests (LD_PRELOAD).
alloc-counter: $(B)/tests/count_allocs.so
slow-disk: $(B)/tests/slow_disk.so
bad-sectors: $(B)/tests/bad_sectors.so
power-cut: $(B)/tests/power_cut.so
wall-clock: $(B)/tests/wall_clock.so
late-signal: $(B)/tests/late_signal.so
$(B)/tests/%.so: tests/preload/%.c
	@mkdir -p $(@D)
	@$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -O2 -g -fPIC -shared -fvisibility=hidden -o $@ $< -ldl -lpthread

# Tests: one program for each tests/unit/FOLDER/test_X.c.
UNIT = $(patsubst tests/unit/%.c,$(B)/unit/%,$(wildcard tests/unit/*/test_*.c)) \
       $(patsubst tests/unit/%.cpp,$(B)/unit/%,$(wildcard tests/unit/*/test_*.cpp))
SUPPORT = $(patsubst %.c,$(B)/%.o,$(wildcard tests/support/*.c))

define unit_folder
$(B)/unit/$(1)/%: $(B)/tests/unit/$(1)/%.o $(call fixtures,$(1)) $(SUPPORT) $(call libs,$(link.$(1)))
	@mkdir -p $$(@D)
	@echo "  LINK $$@"
	@$$(CC) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) $$(archives) $$(LDLIBS) -lcmocka
endef
$(foreach r,common proto core net checkpoint wal recovery replication admin cluster client libpsd data model worker psctl psd,$(eval $(call unit_folder,$(r))))
$(B)/unit/worker/test_job_peers: $(B)/tests/unit/client/fake_shard.o

# Those of the CUDA half, on the emulated device.
link.cuda = worker/model worker/compute worker/data server/core proto common
$(B)/unit/cuda/%: $(B)/tests/unit/cuda/%.o $(call fixtures,cuda) $(SUPPORT) $(B)/lib/emu_cuda.a $(call libs,$(link.cuda))
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -lcmocka

# The golden runs take the worker's own path: in this process, or over the wire with PS_SERVERS set.
GOLDEN_TESTS = $(patsubst tests/golden/%.c,$(B)/golden/%,$(wildcard tests/golden/test_*.c))
$(B)/golden/%: $(B)/tests/golden/%.o $(B)/tests/golden/harness.o $(B)/tests/support/npy.o $(call libs,$(link.worker))
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(archives) $(LDLIBS) -lcmocka

golden-tests: $(GOLDEN_TESTS)

# Fuzz targets: with libFuzzer in the variant of that name, else with a main() that runs files once. Only frames
# have real checksums (tests/fuzz/harness.h).
FUZZ = $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
fuzz_main = $(if $(filter fuzz,$(VARIANT)),,$(B)/tests/fuzz/replay.o)
fuzz_crc  = $(if $(filter %/fuzz_frame,$@),,$(filter %/crc32c.o,$^))
$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(patsubst %,$(B)/tests/fuzz/%.o,harness disk text crc32c) $(SUPPORT) $(fuzz_main) \
    $(call libs,deploy/psctl worker/cache worker/serve worker/data worker/client $(link.psd))
	@mkdir -p $(@D)
	@echo "  LINK $@"
	@$(CC) $(LDFLAGS) $(if $(fuzz_main),,-fsanitize=fuzzer) -o $@ $(filter-out %/crc32c.o,$(filter %.o,$^)) $(fuzz_crc) $(filter %.a,$^) $(LDLIBS) -lcmocka

$(addprefix $(B)/fuzz/fuzz_,shard snapshot_meta pull_reply): $(call fixtures,core)
$(addprefix $(B)/fuzz/fuzz_,checkpoint shard_file manifest): $(call fixtures,checkpoint)
$(B)/fuzz/fuzz_http: $(call fixtures,admin)
$(B)/fuzz/fuzz_settings: $(call fixtures,common)
$(B)/fuzz/fuzz_wal: $(call fixtures,wal)

fuzz-targets: $(FUZZ)

unit: $(UNIT)                 ## build the unit tests of this VARIANT

fuzz soak: SECONDS = 600
check: deps                   ## in 2 minutes: unit tests of the release build, golden numbers, ten tests of real processes
	@$(MAKE) --no-print-directory golden
	@tests/run.sh check

test: deps                    ## in 13 minutes: all tests, sanitizers included; a short run of the simulation and of the fuzz targets
	@$(MAKE) --no-print-directory golden
	@tests/run.sh test

ci: deps fuzz-deps deb-test-deps ## make test, with twice the cases of the longest tests; unit tests without the real data, kernels, 10 s for each fuzz target
	@$(MAKE) --no-print-directory golden
	@tests/run.sh ci

soak: deps fuzz-deps          ## all cases of the longest tests; the simulation and each fuzz target for SECONDS (600)
	@$(MAKE) --no-print-directory golden
	@tests/run.sh soak $(SECONDS)

golden: $(BUILD)/golden/.done
$(BUILD)/golden/.done: tests/golden/vectors.tar.zst tests/golden/models.tar.zst tests/golden/optimizers.tar.zst \
    tests/golden/fields.tar.zst tests/golden/papers.tar.zst tests/golden/communication.tar.zst \
    tests/golden/layers.tar.zst tests/golden/meta.tar.zst
	@mkdir -p $(@D)
	@for archive in $^; do zstd -dcq --long=27 $$archive | tar x -C $(@D) || exit 1; done
	@touch $@

# Of a make without -j, too.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
demo: build-deps              ## install what is missing, build, train on the census data, show the AUC
	@$(MAKE) --no-print-directory $(JOBS) $(addprefix $(B)/bin/,psd psworker psctl)
	@deploy/demo.sh $(B)/bin

build-deps:                   ## install the Debian packages that a build needs and are missing (root or sudo)
	@deploy/deps.sh $(APT_BUILD)

deps:                         ## those of the tests, too
	@deploy/deps.sh $(APT_BUILD) $(APT_TEST) $(APT_PYTHON)

# Outside CI the kept inputs are run without libFuzzer where it cannot be installed.
fuzz-deps:
	@deploy/deps.sh $(APT_FUZZ) || [ -z "$$CI" ]

fuzz: deps fuzz-deps          ## fuzz every format and message parser, each for SECONDS (600); TARGETS="wal shard_file" takes some
	@tests/fuzz/run.sh $(SECONDS) $(TARGETS)

fuzz-quick: deps fuzz-deps    ## the same for 10 s each, as CI does
	@tests/fuzz/run.sh 10 $(TARGETS)

lint:                         ## include order, circles, names, thread roles, globals, sizes, docs, format
	@deploy/deps.sh $(APT_BUILD) $(APT_LINT)
	@$(MAKE) --no-print-directory all $(B)/lib/emu_cuda.a $(call lib,worker/libpsd) >/dev/null
	@tests/lint/run.sh $(B)

cuda-budget:                  ## registers of every kernel against tests/gpu/budget.txt; a spill fails; skipped without nvcc
	@tests/gpu/budget.py "$(NVCC)" $(CUDA_FLAGS)

gpu-tests:                    ## kernels, layers, steps and models on this machine's GPU against the CPU and float64; RUN="compute-sanitizer --tool racecheck"
	@[ -z "$(CUDA_LACK)" ] || { echo "gpu-tests: there is no $(CUDA_LACK), so nothing for a GPU can be built" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(BUILD)/cuda/gpu/facts && $(BUILD)/cuda/gpu/facts
	@$(MAKE) --no-print-directory $(GPU_TESTS)
	@for t in $(GPU_TESTS); do echo "$$t"; $(RUN) $$t || bad=1; done; exit $${bad:-0}

ifeq ($(CUDA_LACK),)
gpu-programs: $(GPU_TESTS) $(GPU_PROGRAMS)
	@echo "$(words $^) programs for a GPU are built"
else
gpu-programs:
	@echo "no $(CUDA_LACK): the programs for a GPU are not built"
endif

# In build/gpu, or $OUT. Says what is missing and fails where there is no GPU.
gpu-check:                    ## all that a GPU has to show, in one command of under 9 minutes: facts, tests, sanitizers, speed, PyTorch, psd; a table last
	@tests/gpu/check.sh "$(MAKE)" $(BUILD) "$(CUDA_LACK)"

gpu-pack:                     ## build/gpu-pack.tar.xz: gpu-check with all programs and data, for a machine with a GPU and little else
	@[ -z "$(CUDA_LACK)" ] || { echo "gpu-pack: there is no $(CUDA_LACK), so nothing for a GPU can be built" >&2; exit 1; }
	@$(MAKE) --no-print-directory VARIANT=release all gpu-programs
	@tests/gpu/pack.sh $(BUILD)

cuda-coverage:                ## which lines of the kernels the tests on the emulated device run; under 95 % fails
	@$(MAKE) --no-print-directory VARIANT=cover $(patsubst tests/unit/%,$(BUILD)/cover/unit/%,$(basename $(wildcard tests/unit/cuda/test_*.c*)))
	@tests/emu/coverage.py $(BUILD)/cover

bench: all                    ## psbench in many settings (figures: deploy/docs/benchmarks.md)
	@tests/bench/run.sh $(B)/bin

bench-hotpath: all            ## one shard on one core against the limits of the machine
	@tests/bench/hotpath.py $(B)/bin $(FLAGS)

bench-client: all $(B)/bin/bench-client $(B)/bin/bench-cache ## pulls through the client library, beside psbench; its cache
	@tests/bench/client.py $(B)/bin $(FLAGS)

bench-reads: all              ## latency of a reader, alone and beside pushes; FLAGS=--help
	@tests/bench/reads.py $(B)/bin $(FLAGS)

bench-standby: all            ## what a standby costs and how it keeps up: push, follow, join, copy, return; FLAGS=--help
	@tests/bench/standby.py $(B)/bin $(FLAGS)

bench-unique: $(B)/bin/bench-unique ## the different keys of a batch, by hash and by sort
	@$<

bench-serve: all              ## scores over HTTP, beside PyTorch with the same weights
	@tests/bench/serve.py $(B)/bin $(FLAGS)

bench-train: all              ## training speed: in one process, with psd, PyTorch; FLAGS=--help
	@tests/bench/train.py $(B)/bin $(FLAGS)

bench-wire: all               ## wire bytes and AUC of codec settings, and a slow link (root); FLAGS=--help
	@tests/bench/wire.py $(B)/bin $(FLAGS)

bench-wire-workers: all       ## wire bytes and AUC of 1, 2, 4 and 8 workers, and what the bytes are; FLAGS=--help
	@tests/bench/wire_workers.py $(B)/bin $(FLAGS)

bench-stragglers: all         ## four workers, one of them slow; FLAGS=--help
	@tests/bench/stragglers.py $(B)/bin $(FLAGS)

bench-learned: all            ## AUC of psworker's defaults, means of 8 seeds; FLAGS=--help
	@tests/bench/learned.py $(B)/bin $(FLAGS)

bench-step: $(B)/bin/bench-step ## what a training step costs, op by op, against its floors
	@$<

bench-data: $(B)/bin/bench-data ## what reading click logs costs; FILE= takes Criteo text
	@$< $(FILE)

bench-feed: all $(B)/bin/bench-feed ## psworker's feed from its cache: samples per second; BEFORE= another build's bench-feed
	@$(PYTHON) tests/bench/feed.py $(FLAGS) $(if $(BEFORE),--before $(BEFORE)) $(B)/bin

bench-log: $(B)/bin/bench-log ## what the write-ahead log costs a shard, and what the disk takes; DIR= for the disk
	@$< $(DIR)

bench-store: $(B)/bin/bench-store ## what checkpoints cost: slices, writing, loading; DIR= for the disk, MILLIONS= of rows
	@$< $(or $(DIR),/tmp) $(MILLIONS)

sim: $(B)/bin/sim             ## simulated schedules with new seeds: SCHEDULES=10000, or SECONDS= of CPU
	@$< $(if $(SECONDS),--seconds $(SECONDS),--schedules $(or $(SCHEDULES),10000))

docs: all                     ## make deploy/docs/reference.md anew, from what the programs print
	@deploy/docs/reference.sh $(B)/bin >deploy/docs/reference.new && mv deploy/docs/reference.new deploy/docs/reference.md

push-path: all                ## functions, lines and files that a push runs through, by callgrind; LIST=--list names them
	@tests/lint/push_path.py $(B) $(LIST)

sim-mutants:                  ## does the simulation find faults? each of tests/sim/mutants.py within 5,000 schedules; MUTANTS= takes some
	@tests/sim/mutants.py $(MUTANTS)

DEB_DIR = $(BUILD)/deb
# After the version, such as +2: of packages that are newer than those of the same version.
DEB_SUFFIX =
deb: deb-deps                 ## build/deb/*.deb: psd, psworker, psctl, libpsd1, libpsd-dev, python3-psd, with nvcc psd-cuda; DEB_SUFFIX=+2
	@$(MAKE) --no-print-directory VARIANT=release all
	@deploy/deb.sh "$(BUILD)" "$(DEB_DIR)" "$(VERSION)$(DEB_SUFFIX)" "$(if $(CUDA_LACK),no,yes)" "$(APT_LIBPSD)" $(APT_BUILD) \
	    $(filter-out debhelper dh-python,$(APT_DEB))

deb-deps:
	@deploy/deps.sh $(APT_BUILD) $(APT_DEB)

deb-test-deps:
	@deploy/deps.sh $(APT_DEB) $(APT_DEB_TEST)

install: all                  ## DESTDIR= PREFIX= LIBDIR=: programs, libpsd, units, samples, man pages
	@CC="$(CC)" deploy/install.sh "$(B)/bin" "$(DESTDIR)" "$(PREFIX)" "$(LIBDIR)"

clean:                        ## remove build/
	rm -rf $(BUILD)

help:                         ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

.PHONY: libpsd wheel alloc-counter slow-disk bad-sectors power-cut wall-clock late-signal push-path gpu-check gpu-pack gpu-programs gpu-tests cuda-plugin emu-plugin cuda-coverage cuda-budget sim sim-mutants fuzz fuzz-quick fuzz-deps fuzz-targets bench-log bench-store bench-step bench-data bench-feed bench-hotpath bench-train bench-wire bench-wire-workers bench-stragglers bench-learned bench-client bench-reads bench-unique bench-standby bench-serve all docs unit check test ci soak golden golden-tests demo build-deps deps deb deb-deps deb-test-deps lint bench install clean help
.DELETE_ON_ERROR:
.SECONDARY:
-include $(shell find $(B) $(BUILD)/cuda -name '*.d' 2>/dev/null)
