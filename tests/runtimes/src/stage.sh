# The first process of a stage, in new namespaces. $hierarchies are the machine's cgroup mounts. $disk is the directory of its
# disk; if it is empty, the files are in memory.
set -e
# The machine's /proc is still mounted: it shows this process's PID on the machine.
read -r pid _ </proc/self/stat
mount -t proc proc /proc
# A new /sys shows the stage's own links. It hides the hierarchies, which are mounted again.
mount -t sysfs sysfs /sys
case $hierarchies in *" cgroup "*) mount -t tmpfs -o mode=755 none /sys/fs/cgroup ;; esac
echo "$hierarchies" | while read -r path kind options; do
  mkdir -p "$path"
  case $kind in
    cgroup)
      wanted=$(echo "$options" | tr , '\n' | grep -vxE 'rw|ro|nosuid|nodev|noexec|relatime|noatime' | paste -sd,)
      case $wanted in *name=*) wanted=none,$wanted ;; esac
      mount -t cgroup -o "$wanted" none "$path" ;;
    cgroup2)
      mount -t cgroup2 none "$path"
      # Only a group without processes can enable controllers for its children.
      mkdir "$path/first" && echo $$ >"$path/first/cgroup.procs" ;;
  esac
done
for folder in /var/lib /var/log /var/tmp; do
  if [ -n "$disk" ]; then mkdir -p "$disk$folder" && mount --bind "$disk$folder" $folder; else mount -t tmpfs -o mode=755 none $folder; fi
done
# This mount is the last one, because $disk may be below this path.
mount -t tmpfs -o mode=755 none /run
# Changes in /etc and /opt stay on the stage.
is_new=$([ -e /var/lib/stage ] || echo yes)
for folder in etc opt; do
  mkdir -p /var/lib/stage/$folder /var/lib/stage/$folder.work
  mount -t overlay -o lowerdir=/$folder,upperdir=/var/lib/stage/$folder,workdir=/var/lib/stage/$folder.work none /$folder
done
if [ -n "$is_new" ]; then rm -rf /etc/cni /opt/cni; fi
mkdir -p /etc/cni/net.d /opt/cni/bin /run/netns /run/test /run/lock /var/lib/cni
mount --make-rshared /
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
echo "ready $pid"
# While it waits, this shell also reaps orphaned processes.
exec 3<&0
cat <&3 >/dev/null &
wait $!
