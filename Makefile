# Every verb for contributors. Each installs what it needs on a fresh Debian machine and says so.
#
#   make demo            watch pods get a network, then a cluster, in namespaces that vanish afterwards
#   make check           the quick loop: format, lints, unit tests; needs no root
#   make test            the gate: lint, unit, kernel, suites, runtimes, demo, clean; 20 minutes when built
#   make test-all        everything: whole sweeps, Go-built peers, Kubernetes, benchmarks, an emulated machine
#   make test-LANE       one lane of test-all: lint unit kernel suites runtimes kubernetes demo bench
#   make test-vm         the lane vm: what this kernel lacks; VM="links vlan" chooses steps
#   make build           dist/podwire, dist/podwire-cni, dist/cni/<type>
#   make lint            format and lints only
#   make bench           speed, interleaved with Debian's Go plugins; BENCH="bridge --enforce" chooses
#   make fuzz            coverage-guided fuzzing of the parsers; FUZZ_SECONDS=60 for each target
#   make image           dist/podwire-image.tar, the image of the agents and the controller
#   make manifests       deploy/kubernetes-flannel.yaml and -calico.yaml, from the chart; needs Go
#   make install         into DESTDIR (default /), plugins into /opt/cni/bin
#   make clean           removes what was built

SHELL := /bin/bash
MACHINE := $(shell uname -m)
DESTDIR ?=
PREFIX ?= /usr/local
CNI_BIN ?= /opt/cni/bin
SYSTEMD ?= $(PREFIX)/lib/systemd/system
FUZZ_SECONDS ?= 60
PLUGINS := bandwidth bridge calico calico-ipam debug dhcp dummy firewall flannel host-device host-local ipvlan loopback macvlan noop portmap ptp sbr static tap tuning vlan vrf
VM ?=

.PHONY: help demo test test-all test-vm check build lint bench fuzz image manifests install clean
help:
	@sed -n '3,16s/^# *//p' Makefile

build:
	@scripts/setup build
	@scripts/build $(PLUGINS)

demo:
	@scripts/as-root "make demo" true
	@$(MAKE) --no-print-directory build
	@dist/podwire demo

check: lint
	@scripts/say "unit tests (no root needed)"
	cargo test --workspace --lib --bins --quiet
	cargo test --workspace --doc --quiet

lint:
	@scripts/say "format and lints"
	@scripts/lint

test:
	@scripts/as-root "make test" true
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	@scripts/test

test-all:
	@scripts/as-root "make test-all" true
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	@scripts/test --all

# One lane, with whole sweeps.
test-%:
	@scripts/as-root "make $@" true
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	@scripts/test --all $*

test-vm:
	@scripts/as-root "make test-vm" true
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	@scripts/vm $(VM)

bench:
	@scripts/as-root "make bench" true
	@scripts/setup bench
	@$(MAKE) --no-print-directory build
	@scripts/bench $(BENCH)

fuzz:
	@scripts/setup fuzz
	@scripts/fuzz $(FUZZ_SECONDS)

image: build
	@scripts/image

manifests:
	@scripts/manifests

install:
	@[ "$(DESTDIR)$(CNI_BIN)" != /opt/cni/bin ] || scripts/as-root "make install" true
	@$(MAKE) --no-print-directory build
	@scripts/say "installing into $(DESTDIR)$(PREFIX)/bin, $(DESTDIR)$(CNI_BIN) and $(DESTDIR)$(SYSTEMD)"
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(CNI_BIN)
	install -m 0755 dist/podwire $(DESTDIR)$(PREFIX)/bin/podwire
	install -m 0755 dist/podwire-cni $(DESTDIR)$(PREFIX)/bin/podwire-cni
	ln -sf podwire $(DESTDIR)$(PREFIX)/bin/cnitool
	install -d $(DESTDIR)$(SYSTEMD)
	install -m 0644 deploy/systemd/podwire-dhcp.socket $(DESTDIR)$(SYSTEMD)/podwire-dhcp.socket
	for unit in podwire-dhcp podwire-agent-flannel podwire-agent-calico; do \
	  sed 's|/usr/local/bin|$(PREFIX)/bin|' deploy/systemd/$$unit.service > $(DESTDIR)$(SYSTEMD)/$$unit.service; done
	@# A new file is moved over the old one, so that a plugin that runs right now is not disturbed.
	install -m 0755 dist/podwire-cni $(DESTDIR)$(CNI_BIN)/.podwire-cni.new
	for type in $(PLUGINS); do ln -f $(DESTDIR)$(CNI_BIN)/.podwire-cni.new $(DESTDIR)$(CNI_BIN)/.$$type.new && \
	  mv -f $(DESTDIR)$(CNI_BIN)/.$$type.new $(DESTDIR)$(CNI_BIN)/$$type; done
	rm -f $(DESTDIR)$(CNI_BIN)/.podwire-cni.new

clean:
	rm -rf dist target fuzz/target
