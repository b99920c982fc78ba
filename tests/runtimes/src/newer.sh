# Unpacks packages of Debian unstable, named by $2 and the following, into the directory $1, from the mirror that this machine
# uses. It installs nothing and does not change the machine's own package lists.
set -eu
command -v apt-get >/dev/null || { echo "no apt-get" >&2; exit 1; }
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ')
[ -n "$mirror" ] || { echo "no Debian mirror in /etc/apt" >&2; exit 1; }
new=$1.new.$$
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/lists/partial" "$new/cache/archives/partial" "$new/tree"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$new/sources.list"
cat >"$new/apt.conf" <<CONF
Dir::Etc::SourceList "$new/sources.list"; Dir::Etc::SourceParts "-"; Dir::State::Lists "$new/lists"; Dir::Cache "$new/cache";
APT::Sandbox::User "root"; Acquire::Languages "none";
CONF
export APT_CONFIG=$new/apt.conf
folder=$1
shift
cd "$new"
apt-get -qq update
apt-get -qq download "$@"
for package in *.deb; do dpkg-deb -x "$package" tree; done
# Another process may have created it first.
mv -T tree "$folder" 2>/dev/null || [ -d "$folder/usr" ]
