#!/bin/bash
# Installs what zgateway needs on Debian 12. Idempotent: what is installed already costs no network access.
#
#   scripts/setup.sh [run] [test] [ui]      default: run test
#
# run   building and running the gateway, and the quick start (a real Redis Cluster with redis-benchmark)
# test  everything scripts/test.sh, scripts/bench.sh and .ci/run use; implies run
# ui    what the web console needs; implies run
set -euo pipefail

run_packages="gcc meson ninja-build pkg-config liburing-dev libyaml-dev libxxhash-dev libmimalloc-dev nettle-dev libc6-dev python3
    redis-server redis-tools procps"
test_packages="libcriterion-dev clang llvm libclang-rt-14-dev clang-tidy clang-format cppcheck python3-redis python3-pytest python3-pytest-xdist
    nodejs npm nutcracker haproxy valgrind iproute2 nftables util-linux git"
# The console is served by the gateway itself: plain files, no build step. Its tests drive a browser.
ui_packages="nodejs npm chromium"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(run test)
wanted=""
with_valkey=false
for part in "${parts[@]}"; do
    case "$part" in
    run) wanted+=" $run_packages" ;;
    test) wanted+=" $run_packages $test_packages"; with_valkey=true ;;
    ui) wanted+=" $run_packages $ui_packages" ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "unknown part '$part': run, test or ui" ;;
    esac
done

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=()
for package in $(printf '%s\n' $wanted | sort -u); do
    is_installed "$package" && continue
    # Node from another source brings npm along, and then Debian's npm cannot be installed beside it.
    [ "$package" = npm ] && command -v npm >/dev/null && continue
    [ "$package" = nodejs ] && command -v node >/dev/null && continue
    missing+=("$package")
done

sudo=""
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
policy_is_ours=false

# Installing a server starts it on its standard port. A policy of 101 forbids that for as long as we install.
forbid_services() {
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
        $sudo chmod 755 $policy
        policy_is_ours=true
    fi
}
restore_services() {
    if $policy_is_ours; then
        $sudo rm -f $policy
        policy_is_ours=false
    fi
}
trap restore_services EXIT

# Servers that this script brought are not started by the next boot either. One that was there before is left as it was.
keep_disabled() {
    if command -v systemctl >/dev/null; then
        $sudo systemctl disable "$1" >/dev/null 2>&1 || true
    fi
}

install() {
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get "${apt_options[@]}" install -y -q --no-install-recommends "$@"
}

apt_options=()
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || die "missing: ${missing[*]}; this script knows apt-get only"
    [ -z "$sudo" ] || command -v sudo >/dev/null || die "missing: ${missing[*]}; run as root, or install sudo"
    say "installing ${missing[*]}"
    forbid_services
    $sudo apt-get update -q || say "apt-get update failed; trying with the lists that are there"
    install "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
    restore_services
    for package in "${missing[@]}"; do
        case "$package" in
        redis-server) keep_disabled redis-server ;;
        nutcracker) keep_disabled nutcracker ;;
        haproxy) keep_disabled haproxy ;;
        esac
    done
fi

# Valkey 8 is a second real server for the tests, from the release's backports. The tests that want it are skipped without it.
# Its source entry is made from the machine's own entries, used for this one installation and not left behind.
install_valkey() {
    local codename uri signed list
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$codename" ] || return 1
    read -r uri signed < <(python3 - "$codename" <<'PYTHON'
import glob, re, sys
codename = sys.argv[1]
for path in sorted(glob.glob('/etc/apt/sources.list.d/*.sources')):
    for stanza in open(path).read().split('\n\n'):
        fields = dict(re.findall(r'^([A-Za-z-]+):[ \t]*(.*)$', stanza, re.M))
        if 'deb' in fields.get('Types', '').split() and codename in fields.get('Suites', '').split() and 'main' in fields.get('Components', '').split():
            print(fields['URIs'].split()[0], fields.get('Signed-By', '').strip() or '-')
            sys.exit()
for path in ['/etc/apt/sources.list'] + sorted(glob.glob('/etc/apt/sources.list.d/*.list')):
    try:
        lines = open(path).read().splitlines()
    except OSError:
        continue
    for line in lines:
        match = re.match(r'deb\s+(\[[^]]*\]\s+)?(\S+)\s+' + re.escape(codename) + r'/?\s.*\bmain\b', line)
        if match:
            signed = re.search(r'signed-by=([^\] ]+)', match.group(1) or '')
            print(match.group(2), signed.group(1) if signed else '-')
            sys.exit()
PYTHON
    ) || return 1
    [ -n "${uri:-}" ] || return 1
    list=$(mktemp /tmp/zgateway-apt-XXXXXX.list)
    local option=""
    [ "$signed" = - ] || option="[signed-by=$signed] "
    printf 'deb %s%s %s main\ndeb %s%s %s-backports main\n' "$option" "$uri" "$codename" "$option" "$uri" "$codename" >"$list"
    chmod 644 "$list"
    apt_options=(-o "Dir::Etc::sourcelist=$list" -o "Dir::Etc::sourceparts=-" -o APT::Get::List-Cleanup=0)
    local status=0
    forbid_services
    # With -t the whole transaction prefers backports; the dependencies of valkey-server are few, so that is what we want only for it.
    $sudo apt-get "${apt_options[@]}" update -q && install "valkey-server/$codename-backports" "valkey-tools/$codename-backports" || status=1
    restore_services
    apt_options=()
    rm -f "$list"
    [ $status = 0 ] && keep_disabled valkey-server
    return $status
}

if $with_valkey && ! command -v valkey-server >/dev/null && [ -z "${ZG_NO_VALKEY:-}" ]; then
    if ! install_valkey >/tmp/zgateway-valkey-setup.log 2>&1; then
        say "valkey-server 8 is not available from this machine's package sources: the tests with it are skipped"
        say "(last line: $(tail -n 1 /tmp/zgateway-valkey-setup.log))"
    fi
    rm -f /tmp/zgateway-valkey-setup.log
fi

if ! command -v npm >/dev/null && [[ " ${parts[*]} " == *" test "* ]]; then
    die "npm is missing although its package was installed"
fi
say "ready (${parts[*]})"
