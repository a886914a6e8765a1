# Shared by the scripts beside it; sourced, not run.  POSIX sh.

# Progress goes to stderr: stdout belongs to the caller.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Whether we may act as root: as root, or by sudo (asking only where somebody can answer).
can_root() {
    [ "$(id -u)" = 0 ] && return 0
    have sudo || return 1
    [ -t 0 ] || sudo -n true 2>/dev/null
}
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

is_debian() { [ -r /etc/debian_version ] && have apt-get && have dpkg; }
os_field() { [ -r /etc/os-release ] && (. /etc/os-release && eval "printf '%s' \"\${$1:-}\""); }

# The manager that `install_packages` uses: apt dnf pacman brew apk, or nothing.
package_manager() {
    if have apt-get; then echo apt
    elif have dnf; then echo dnf
    elif have pacman; then echo pacman
    elif have brew; then echo brew
    elif have apk; then echo apk
    fi
}

# install_packages PACKAGE...: with the system's package manager; 1 when there is no way.
# Names differ between systems, so callers pass what `package_manager` calls them.
install_packages() {
    manager=$(package_manager)
    [ -n "$manager" ] || return 1
    [ "$manager" = brew ] || can_root || return 1
    say "installing $* with $manager"
    case $manager in
        apt) as_root apt-get -qq -o Acquire::Retries=3 update >&2 || say 'apt-get update had trouble'
             as_root env DEBIAN_FRONTEND=noninteractive \
                 apt-get -qq -y -o Acquire::Retries=3 install --no-install-recommends "$@" >&2 ;;
        dnf) as_root dnf -q -y install "$@" >&2 ;;
        # -Sy alone would ask for a partial upgrade, which Arch does not support.
        pacman) as_root pacman -S --noconfirm --needed "$@" >&2 ;;
        brew) brew install -q "$@" >&2 ;;
        apk) as_root apk add -q "$@" >&2 ;;
    esac
}

# with_apt DIR COMMAND...: run an apt command with the sources in DIR/sources.list and lists and
# archives kept in DIR, so that the system's own sources and lists stay as they are.
with_apt() {
    apt_dir=$1 apt_command=$2
    shift 2
    "$apt_command" -qq -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Default-Release= \
        -o APT::Sandbox::User=root \
        -o Dir::Etc::sourcelist="$apt_dir/sources.list" -o Dir::Etc::sourceparts="$apt_dir/none" \
        -o Dir::Etc::preferencesparts="$apt_dir/none" \
        -o Dir::State::Lists="$apt_dir/lists" -o Dir::Cache="$apt_dir/cache" "$@"
}
