# Creates a stage and keeps it until standard input is closed. $1 is the script of its first process (stage.sh), $2 is the
# directory of its disk, if it has one.
#
# This shell stays outside. When the first process has ended, and with it everything in its PID namespace, the shell
# removes what remains: the stage's groups in the machine's cgroup hierarchies.
set -eu
name=podwire-stage-$$ disk=${2:-}
# One line for each hierarchy: its mount point, its type, its options.
hierarchies=$(while read -r _ path kind options _; do
  case $kind in cgroup | cgroup2) echo "$path $kind $options" ;; esac
done </proc/mounts)
each() { echo "$hierarchies" | while read -r path kind options; do "$@"; done; }

make_group() {
  mkdir "$path/$name"
  # A new cpuset has no CPUs, and no process can join it.
  for set in cpuset.cpus cpuset.mems; do
    if [ "$kind" = cgroup ] && [ -e "$path/$set" ]; then cat "$path/$set" >"$path/$name/$set"; fi
  done
}
remove_group() {
  # The kernel may still be ending the killed processes.
  for _ in $(seq 300); do
    find "$path/$name" -depth -type d -exec rmdir {} + 2>/dev/null && return
    sleep 0.1
  done
  echo "$path/$name could not be removed" >&2
}

each make_group
export name hierarchies disk
# The shell joins the groups before it creates the cgroup namespace, whose root they become.
sh -c 'echo "$hierarchies" | while read -r path _; do echo $$ >"$path/$name/cgroup.procs"; done
  exec unshare --net --mount --pid --cgroup --ipc --fork --kill-child --propagation private -- sh -c "$1"' sh "$1" || true
each remove_group
