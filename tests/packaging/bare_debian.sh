# Sourced by scripts that need a bare Debian 12 of their own. As root.
# enter_bare_debian [PACKAGES]: makes it in $ROOT (default: a new folder, removed at the end); inside COMMAND: runs a command in it.
[ "$(id -u)" -eq 0 ] || { echo "debootstrap needs root" >&2; exit 1; }
root=${ROOT:-$(mktemp -d /var/tmp/lockstep-debian.XXXXXX)}

leave_bare_debian() {
    umount "$root/dev/pts" "$root/sys" "$root/proc" 2>/dev/null || true
    [ -n "${ROOT:-}" ] || rm -rf "$root"
}

enter_bare_debian() {
    trap leave_bare_debian EXIT
    if [ ! -x "$root/usr/bin/apt-get" ]; then
        echo "making a bare Debian in $root" >&2
        debootstrap --variant=minbase ${1:+--include="$1"} bookworm "$root" >"$root.log" 2>&1 || { tail "$root.log" >&2; exit 1; }
        rm -f "$root.log"
    fi
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
    mountpoint -q "$root/sys" || mount -t sysfs -o ro sysfs "$root/sys"
    mountpoint -q "$root/dev/pts" || mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts "$root/dev/pts"
}

inside() {
    chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        bash -euo pipefail -c "$1"
}
