# `make` builds; `make test` and `make check` install what they need (as root) and run. See CONTRIBUTING.md.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# Rust may have been installed a moment ago, by tests/testbed/deps.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
# Where `make` notes what it built into, because sudo does not pass CARGO_TARGET_DIR on to `make install`.
TARGET_NOTE ?= build/target-dir
# One program under the names of its commands, and the one that goes to hosts without it.
PROGRAMS = rdma-pipe rdma-pipe-agent
COMMANDS = rdcp rdsend rdrecv rdpipe rdsh rdperf rddoctor
COMPLETED = $(COMMANDS) rdma-pipe-agent
BINDIR = $(DESTDIR)$(PREFIX)/bin
SHAREDIR = $(DESTDIR)$(PREFIX)/share
MANDIR = $(SHAREDIR)/man/man1
# Where zsh looks, which packages of some distributions have elsewhere; where systemd does.
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
UNITDIR = $(DESTDIR)$(PREFIX)/lib/systemd/system
UNITS = packaging/rdrecv@.service
MANUALS = $(wildcard docs/man/*.1)
SCRIPTS = demo/run tests/run tests/planted/run tests/testbed/guest tests/testbed/guest-init tests/testbed/host \
	tests/testbed/slurm tests/testbed/zfs tests/testbed/setup tests/testbed/selftest tests/testbed/deps packaging/build packaging/test packaging/fresh .ci/run

.PHONY: all build install uninstall packages package-deps test-packages test-fresh deps check-deps bench-deps check advisories test test-long demo demo-rdma record bench bench-full bench-quick bench-report book clean

all: build

build:
	$(CARGO) build --release --locked --bins --target-dir "$(TARGET_DIR)"
	@for command in $(COMMANDS); do ln -sf rdma-pipe "$(TARGET_DIR)/release/$$command"; done
	@[ "$$(cat "$(TARGET_NOTE)" 2>/dev/null || echo target)" = "$(TARGET_DIR)" ] || \
		{ mkdir -p build && echo "$(TARGET_DIR)" >"$(TARGET_NOTE)"; } || \
		echo "make: cannot write $(TARGET_NOTE); give CARGO_TARGET_DIR to make install" >&2

# Copies what `make` has built: run `make` as yourself, then `sudo make install` needs no cargo. Programs are renamed into
# place, so that none is missing for a moment: rdrecv@PORT, if it started again in that moment, would stay down.
install: TARGET_DIR = $(or $(CARGO_TARGET_DIR),$(shell cat "$(TARGET_NOTE)" 2>/dev/null),target)
install:
	@for command in $(PROGRAMS); do test -x "$(TARGET_DIR)/release/$$command" || \
		{ echo "make install: $(TARGET_DIR)/release/$$command is missing; run: make" >&2; exit 1; }; done
	install -d "$(BINDIR)"
	@for program in $(PROGRAMS); do \
		install -m 755 "$(TARGET_DIR)/release/$$program" "$(BINDIR)/.$$program.new" && \
		mv -f "$(BINDIR)/.$$program.new" "$(BINDIR)/$$program" || exit 1; done
	@for command in $(COMMANDS); do ln -sf rdma-pipe "$(BINDIR)/$$command"; done
	@if [ -n "$(MANUALS)" ]; then install -d "$(MANDIR)" && install -m 644 $(MANUALS) "$(MANDIR)"; fi
	@for command in $(COMPLETED); do \
		install -D -m 644 "docs/completions/$$command.bash" "$(SHAREDIR)/bash-completion/completions/$$command" && \
		install -D -m 644 "docs/completions/$$command.fish" "$(SHAREDIR)/fish/vendor_completions.d/$$command.fish" && \
		install -D -m 644 "docs/completions/_$$command" "$(DESTDIR)$(ZSHDIR)/_$$command" || exit 1; done
	install -d "$(UNITDIR)" && install -m 644 $(UNITS) "$(UNITDIR)"

# Removes files only, and stops no rdrecv@PORT. The directories are not ours alone: a package may have brought an empty
# one, as Debian does /usr/local/bin, and nothing tells it from one that `make install` has made.
uninstall:
	rm -f $(COMMANDS:%="$(BINDIR)"/%) $(PROGRAMS:%="$(BINDIR)"/%) $(patsubst docs/man/%,"$(MANDIR)"/%,$(MANUALS)) \
		$(COMPLETED:%="$(SHAREDIR)"/bash-completion/completions/%) \
		$(COMPLETED:%="$(SHAREDIR)"/fish/vendor_completions.d/%.fish) $(COMPLETED:%="$(DESTDIR)$(ZSHDIR)"/_%) \
		$(UNITS:packaging/%="$(UNITDIR)"/%)

# A .deb, an .rpm, a tarball and a wheel under build/packages, of what `make install` installs, for glibc 2.28 and newer.
packages: package-deps
	packaging/build

package-deps:
	tests/testbed/deps packages

# Installs each of them in a root of its own, copies between two hosts, removes it, and looks for what is left. As root.
test-packages: packages
	packaging/test

# README's first two commands, and the .deb, in empty Debian roots. As root; an hour, and a mirror for what is not kept yet.
test-fresh: packages
	tests/testbed/deps fresh
	packaging/fresh

# What tests need, and what checks need. As root it is installed; otherwise one command that installs it is printed.
deps:
	tests/testbed/deps test

check-deps:
	tests/testbed/deps check

check: check-deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --document-private-items
	$(CARGO) deny --locked check bans licenses sources
	shellcheck -x -P SCRIPTDIR $(SCRIPTS)
	tests/planted/run --apply
	@$(MAKE) --no-print-directory advisories

# Known vulnerabilities of what is linked in. Without a database, and without a network to fetch it, nothing has been
# checked, and the last line says so.
ADVISORIES = $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs
advisories:
	@timeout 60 $(CARGO) deny --locked fetch db >/dev/null 2>&1 || offline=1; \
	if ls -d "$(ADVISORIES)"/*/crates >/dev/null 2>&1; then \
		[ -z "$$offline" ] || echo "make check: advisories: no network, the database is of an earlier day" >&2; \
		$(CARGO) deny --locked --offline check advisories; \
	else \
		echo "make check: advisories: SKIPPED, nothing checked: there is no database, and it cannot be fetched" >&2; \
	fi

test: deps
	tests/run

test-long: deps
	tests/run long

# The main job, on this machine. It installs for itself what is missing, so that a fresh machine needs only `make`.
demo:
	@demo/run

demo-rdma:
	@demo/run rdma

# docs/terminal.svg, which README shows, from a real copy. As root.
record: build
	demo/record

bench-deps:
	tests/testbed/deps bench

# What must hold, measured, in 25 minutes; results under build/bench. ONLY=tcp,peers RUNS=9 SIZE_MIB=4096 choose what, and how.
bench: bench-deps build
	$(CARGO) bench --locked --target-dir "$(TARGET_DIR)" --bench bench

# All rows, with more rounds and larger sizes: hours.
bench-full: bench-deps build
	FULL=1 $(CARGO) bench --locked --target-dir "$(TARGET_DIR)" --bench bench

# In less than 3 minutes, on small sizes, without the guest: shows that things work, not how fast they are.
bench-quick: bench-deps build
	QUICK=1 $(CARGO) bench --locked --target-dir "$(TARGET_DIR)" --bench bench

# Puts what `make bench` has measured, under build/bench, into docs/performance: the sections of its rows, no others.
bench-report: build
	$(CARGO) bench --locked --target-dir "$(TARGET_DIR)" --bench bench -- --report

# The pages under docs as a book, for a browser: build/book/index.html.
MDBOOK = build/mdbook-0.4.52
book:
	@test -x $(MDBOOK)/bin/mdbook || { echo "building mdBook, once; this takes some minutes"; \
		$(CARGO) install --quiet --locked --root $(MDBOOK) --version 0.4.52 mdbook; }
	$(MDBOOK)/bin/mdbook build docs

clean:
	$(CARGO) clean
	$(CARGO) clean --target-dir "$(TARGET_DIR)"
	rm -rf build
