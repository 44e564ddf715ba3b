# make setup   everything a build needs (run, test and lib call it)
# make run     build, then measure and check all-reduce: make run ARGS="-b 8 -e 1G -f 2"
# make test    all tests that need no GPU
# make lib     target/release/libnccl.so.2
# make plugins libnccl-net-hawser-socket.so and its siblings, for NVIDIA's NCCL
#              Both run with old versions of glibc (packaging/glibc); HAWSER_GLIBC=host: quicker, for this machine
# make glibc   checks that they do
# make check   formatting, lints, documentation, house rules
# make crates  packs the crates that others may use (those without publish = false), for crates.io
# make docs    the book, target/book/index.html, with every link checked (installs mdBook)
# make lab     what the tests between virtual machines need (Debian; else it says what is missing)
# make install    into PREFIX (/opt/hawser), below DESTDIR; make uninstall takes it away
# make packages   tarball, Debian package and wheel in target/packages, looked at by auditwheel and lintian

SHELL  := /bin/bash
PREFIX ?= /opt/hawser
ARGS   ?= -b 8 -e 64M -f 8

CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(CARGO_HOME)/bin:$(PATH)
TARGET := $(or $(CARGO_TARGET_DIR),target)
BOOK   := target/book

# With frame pointers the tables for unwinding are 100 kB smaller (docs/adr/0014), and profilers see who called. Names of files
# in the library do not tell where it was built.
lib plugins: export RUSTFLAGS := $(RUSTFLAGS) -C force-frame-pointers=yes --remap-path-prefix=$(CARGO_HOME)/registry/src=deps

.PHONY: crates docs run test lib plugins glibc check setup release-setup packages-setup lab install uninstall packages

run: lib
	$(TARGET)/release/hawser perf all_reduce $(ARGS)

# Some tests run the command line tool or load the library: build both before the tests.
test: setup
	@echo "test: building"
	@cargo build --quiet --workspace
	@cp -f $(TARGET)/debug/libnccl.so $(TARGET)/debug/libnccl.so.2
	@set -o pipefail; cargo test --workspace 2>&1 | tee $(TARGET)/tests.log
	@echo "test: $$(grep -c 'skipped: ' $(TARGET)/tests.log) tests were skipped, with a reason each: grep 'skipped: ' $(TARGET)/tests.log"

lib: release-setup
	@echo "lib: building libnccl.so.2 and hawser (minutes the first time)"
	@scripts/release.sh hawser-capi:libnccl.so hawser-cli:hawser
	@strip -o $(TARGET)/release/libnccl.so.2 $(TARGET)/release/libnccl.so

plugins: release-setup
	@echo "plugins: building"
	@scripts/release.sh hawser-net-socket-export:libnccl_net_hawser_socket.so \
		hawser-net-ib-export:libnccl_net_hawser_ib.so \
		hawser-tuner-export:libnccl_tuner_hawser.so \
		hawser-profiler-export:libnccl_profiler_hawser.so
	@cd $(TARGET)/release && cp -f libnccl_net_hawser_socket.so libnccl-net-hawser-socket.so
	@cd $(TARGET)/release && cp -f libnccl_net_hawser_ib.so libnccl-net-hawser-ib.so
	@cd $(TARGET)/release && cp -f libnccl_tuner_hawser.so libnccl-tuner-hawser.so
	@cd $(TARGET)/release && cp -f libnccl_profiler_hawser.so libnccl-profiler-hawser.so

# The newest glibc that the files need is no newer than packaging/glibc says.
glibc: lib plugins
	@cargo xtask glibc $(addprefix $(TARGET)/release/,libnccl.so.2 hawser libnccl-net-hawser-socket.so \
		libnccl-net-hawser-ib.so libnccl-tuner-hawser.so libnccl-profiler-hawser.so)

check: setup
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items
	cargo xtask tidy

crates: setup
	@names=$$(git grep -L '^publish = false' -- 'core/*/Cargo.toml' 'kernels/abi/Cargo.toml' 'plugins/*/Cargo.toml' | \
		xargs sed -n 's/^name = "\(hawser[^"]*\)"/-p \1/p') && cargo package --no-verify $$names

docs:
	@scripts/setup.sh docs
	@.venv/bin/mdbook build
	@cargo xtask book $(BOOK)

setup:
	@scripts/setup.sh

release-setup:
	@scripts/setup.sh release

packages-setup:
	@scripts/setup.sh packages

lab:
	@scripts/lab.sh

install: lib plugins
	@packaging/install.sh install $(TARGET)/release $(PREFIX) $(DESTDIR)

uninstall:
	@packaging/install.sh uninstall $(PREFIX) $(DESTDIR)

packages: packages-setup glibc
	@packaging/build.py --built $(TARGET)/release --out $(TARGET)/packages
	@packaging/check.sh $(TARGET)/packages
