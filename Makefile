# Everything a user or a contributor runs. `make help` lists it.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
GENERATED := $(TARGET)/generated
# Debug information stays in target/; functions keep their names. STRIP=true installs all, STRIP=TRIPLET-strip what is of another machine.
STRIP ?= strip
STRIPPED := $(GENERATED)/stripped

BINDIR := $(DESTDIR)$(PREFIX)/bin
LIBDIR := $(DESTDIR)$(PREFIX)/lib/viaduct
INCLUDEDIR := $(DESTDIR)$(PREFIX)/include
PKGCONFIGDIR := $(DESTDIR)$(PREFIX)/lib/pkgconfig
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# What programs are linked with, by the version of its interface.
LIBRARY := libviaduct.so.$(firstword $(subst ., ,$(VERSION)))
MANDIR := $(DESTDIR)$(PREFIX)/share/man
DOCDIR := $(DESTDIR)$(PREFIX)/share/doc/viaduct
BASHDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSHDIR := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISHDIR := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
UNITDIR ?= $(DESTDIR)$(PREFIX)/lib/systemd/system

.PHONY: help rust build generate test quick-test test-suites compatibility soak demo bench fmt lint doc install uninstall clean setup

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

rust:
	@CARGO=$(CARGO) scripts/need-rust

build: rust ## release binaries in target/release: viaduct, viaductd, libviaduct_preload.so, libviaduct.so
	$(CARGO) build --workspace --release --locked

setup: ## install the programs the tests and the demo use (Debian, as root)
	scripts/setup

test: rust setup ## set up this machine and run every test; CI runs exactly this
	scripts/test

quick-test: rust ## formatting, lints, unit tests and doc tests only
	scripts/test --quick

test-suites: setup build ## suites that others wrote, all of them: the same tests must pass natively and under Viaduct
	VIADUCT_TEST_REQUIRE=1 $(CARGO) test --package viaduct-testkit --locked --test suites -- --test-threads=1 --nocapture --include-ignored

compatibility: setup build ## test the applications and write the table in docs/compatibility.md, as root
	rm -rf $(TARGET)/results
	VIADUCT_TEST_REQUIRE=1 VIADUCT_TEST_RESULTS=$(abspath $(TARGET))/results \
		$(CARGO) test --package viaduct-testkit --locked --test apps -- --test-threads=1 --skip soak
	$(CARGO) run --quiet --package viaduct-testkit --locked --example compatibility $(TARGET)/results

soak: setup build ## half an hour of mixed load with random faults, as root
	VIADUCT_TEST_REQUIRE=1 VIADUCT_SOAK_SECONDS=$${VIADUCT_SOAK_SECONDS:-1800} \
		$(CARGO) test --package viaduct-testkit --locked --test apps soak -- --nocapture

demo: rust ## Redis and its own benchmark, plain and accelerated in turn, with proof of the path
	scripts/setup demo
	$(CARGO) build --workspace --release --locked
	$(CARGO) run --quiet --release --locked --package viaduct-testkit --example demo

bench: build ## every experiment of `viaduct bench`, with all rivals
	$(CARGO) build --release --locked --package viaduct-rivals --features iceoryx2
	$(RELEASE)/viaduct bench latency
	$(RELEASE)/viaduct bench bandwidth
	$(RELEASE)/viaduct bench seek
	$(RELEASE)/viaduct bench apps

fmt: rust ## format the source
	$(CARGO) fmt --all

lint: rust ## what CI demands of formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc: rust ## API documentation in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# All that is installed. Under sudo, or where there is no cargo, what is there is installed as it is: whoever built it has the compiler.
BUILT := $(wildcard $(addprefix $(RELEASE)/,viaduct viaductd libviaduct_preload.so libviaduct.so))
CAN_BUILD := $(if $(SUDO_USER),,$(shell command -v $(CARGO)))

generate: $(if $(filter 4,$(words $(BUILT))),$(if $(CAN_BUILD),build),build)
	rm -rf $(GENERATED)
	mkdir -p $(GENERATED)/man $(GENERATED)/completions $(STRIPPED)
	for file in viaduct viaductd libviaduct_preload.so libviaduct.so; do \
		cp $(RELEASE)/$$file $(STRIPPED) || exit; \
		$(STRIP) --strip-debug $(STRIPPED)/$$file || echo "$$file is installed with its debug information" >&2; \
	done
	$(RELEASE)/viaduct generate man $(GENERATED)/man
	$(RELEASE)/viaductd --man >$(GENERATED)/man/viaductd.8
	$(RELEASE)/viaduct generate completions $(GENERATED)/completions
	scripts/changelog >$(GENERATED)/CHANGELOG.md

# A program that starts meanwhile maps the old file or the new one: by half a library it would be killed. Another `make install` may be at work, too.
new = $(dir $(1)).$(notdir $(1)).new.
put = new=$(call new,$(2))$$$$; install -m 755 $(1) $$new && mv -f $$new $(2) || { rm -f $$new; exit 1; }

install: generate ## install under PREFIX (default /usr/local), staged under DESTDIR
	install -d $(BINDIR) $(LIBDIR) $(INCLUDEDIR) $(PKGCONFIGDIR) $(MANDIR)/man1 $(MANDIR)/man3 $(MANDIR)/man8
	install -d $(BASHDIR) $(ZSHDIR) $(FISHDIR) $(UNITDIR) $(DOCDIR)/docs $(DOCDIR)/examples/seek
	$(call put,$(STRIPPED)/libviaduct_preload.so,$(LIBDIR)/libviaduct_preload.so)
	$(call put,$(STRIPPED)/libviaduct.so,$(DESTDIR)$(PREFIX)/lib/libviaduct.so.$(VERSION))
	$(call put,$(STRIPPED)/viaductd,$(BINDIR)/viaductd)
	$(call put,$(STRIPPED)/viaduct,$(BINDIR)/viaduct)
	ln -sf libviaduct.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/$(LIBRARY)
	ln -sf $(LIBRARY) $(DESTDIR)$(PREFIX)/lib/libviaduct.so
	rm -f $(filter-out %/libviaduct.so.$(VERSION),$(wildcard $(DESTDIR)$(PREFIX)/lib/$(LIBRARY).*))
	install -m 644 include/viaduct.h $(INCLUDEDIR)
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' dist/viaduct.pc >$(PKGCONFIGDIR)/viaduct.pc
	chmod 644 $(PKGCONFIGDIR)/viaduct.pc
	install -m 644 docs/man/*.3 $(MANDIR)/man3
	install -m 644 $(GENERATED)/man/*.1 $(MANDIR)/man1
	install -m 644 $(GENERATED)/man/viaductd.8 $(MANDIR)/man8
	install -m 644 $(GENERATED)/completions/viaduct.bash $(BASHDIR)/viaduct
	install -m 644 $(GENERATED)/completions/_viaduct $(ZSHDIR)
	install -m 644 $(GENERATED)/completions/viaduct.fish $(FISHDIR)
	sed 's|@BINDIR@|$(PREFIX)/bin|' dist/viaductd.service >$(UNITDIR)/viaductd.service
	chmod 644 $(UNITDIR)/viaductd.service
	install -m 644 README.md ARCHITECTURE.md $(GENERATED)/CHANGELOG.md LICENSE-APACHE LICENSE-MIT $(DOCDIR)
	install -m 644 docs/*.md docs/*.svg $(DOCDIR)/docs
	install -m 644 examples/seek/* $(DOCDIR)/examples/seek

uninstall: ## remove what install put there
	rm -f $(BINDIR)/viaduct $(BINDIR)/viaductd $(MANDIR)/man1/viaduct.1 $(MANDIR)/man1/viaduct-*.1 $(MANDIR)/man8/viaductd.8
	rm -f $(BASHDIR)/viaduct $(ZSHDIR)/_viaduct $(FISHDIR)/viaduct.fish $(UNITDIR)/viaductd.service
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/lib/,libviaduct.so libviaduct.so.[0-9]*) $(INCLUDEDIR)/viaduct.h $(PKGCONFIGDIR)/viaduct.pc
	rm -f $(patsubst docs/man/%,$(MANDIR)/man3/%,$(wildcard docs/man/*.3))
	rm -f $(addsuffix *,$(foreach file,$(BINDIR)/viaduct $(BINDIR)/viaductd $(DESTDIR)$(PREFIX)/lib/libviaduct.so.$(VERSION),$(call new,$(file))))
	rm -rf $(LIBDIR) $(DOCDIR)

clean: ## remove what was built
	$(CARGO) clean
