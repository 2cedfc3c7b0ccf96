#!/bin/bash
# Starts zgateway in production: chooses CPUs, sets limits, says what it chose and why, and becomes zgateway.
#
#   scripts/launch.sh [options] [-- OPTIONS OF ZGATEWAY]
#
#   --config FILE    the configuration of zgateway; or describe everything behind --
#   --cores N        data cores; without it all physical cores of one NUMA node that are free, within the CPU quota
#   --numa NODE      the NUMA node to take them from
#   --reserve N      physical cores to leave to the rest of the host; default 0
#   --share          take CPUs that other instances hold where there are not enough others
#   --run-dir DIR    where instances of a host write down which CPUs they hold; default $ZG_RUN_DIR, or /run/zgateway
#   --program FILE   the executable; default zgateway beside this script, in ../build, or on the PATH
#   --dry-run        print what would be done and end
#
# One thread a physical core, all of one NUMA node where they fit; the housekeeping core on the second thread of a data core, or on a CPU of its own. CPUs count as usable if they are online and
# allowed by the affinity mask and by the cpusets of the cgroups (v1 and v2, nested). CPUs that another instance holds are left alone: those in the files of the run directory whose process
# lives, and those that threads of a running zgateway are pinned to. Each data core is pinned before it allocates, so its memory is that of its own node by the kernel's first-touch rule: no
# memory policy is set.
#
# Exit status: that of zgateway; 1 where CPUs or the program are missing, 2 for a wrong option. ZG_LAUNCH_ROOT: where /proc and /sys are read, for tests.
# Lists of numbers are split into words on purpose; A && B || C is meant as it reads, where B cannot fail.
# shellcheck disable=SC2086,SC2015,SC2206
set -uo pipefail

readonly CPU_MAX=1023 CORES_MAX=64 FILES_WANTED=1048576 BACKLOG_WANTED=4096
root=${ZG_LAUNCH_ROOT:-}
sys=$root/sys proc=$root/proc
run_dir=${ZG_RUN_DIR:-/run/zgateway}
config="" cores="" numa="" reserve=0 program=""
share=false dry_run=false

say() { printf 'launch: %-12s %s\n' "$1" "$2"; }
die() {
    printf 'launch: %s\n' "$1" >&2
    exit "${2:-1}"
}

# ---- reading ----

# The first line of a file in $line; false where there is none.
read_line() {
    line=""
    [ -r "$1" ] && [ -f "$1" ] || return 1
    { IFS= read -r line || [ -n "$line" ]; } 2>/dev/null <"$1" || return 1
    line=${line//[$'\t\r\0']/ }
    line=${line%"${line##*[! ]}"}
    [ -n "$line" ]
}

is_number() { [[ $1 =~ ^[0-9]{1,9}$ ]]; }

# "0-3,8" becomes the array $list, ascending as the kernel writes it; false for anything else. Numbers beyond what zgateway can be told are left out.
parse_list() {
    local part first last cpu
    list=()
    [[ $1 =~ ^[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*$ ]] || return 1
    for part in ${1//,/ }; do
        first=$((10#${part%-*})) last=$((10#${part#*-}))
        [ "$first" -le "$last" ] || return 1
        for ((cpu = first; cpu <= last && cpu <= CPU_MAX; cpu++)); do list+=("$cpu"); done
    done
}

# Numbers in any order as "0-3,8", in $formatted.
format_list() {
    local first="" last="" number
    local -a sorted=()
    for number in "$@"; do sorted[number]=1; done
    formatted=""
    for number in "${!sorted[@]}" end; do
        if [ -n "$last" ] && [ "$number" != end ] && [ "$number" = $((last + 1)) ]; then
            last=$number
            continue
        fi
        if [ -n "$first" ]; then
            formatted+=${formatted:+,}$first
            [ "$last" = "$first" ] || formatted+=-$last
        fi
        first=$number last=$number
    done
    : "${formatted:=none}"
}

# The value behind "NAME:" in a status file, in $line.
read_status() { # file, name
    local text
    line=""
    [ -r "$1" ] && [ -f "$1" ] || return 1
    while IFS= read -r text; do
        [[ $text == "$2:"* ]] || continue
        line=${text#*:}
        line=${line//[$'\t ']/}
        return 0
    done 2>/dev/null <"$1"
    return 1
}

# ---- which CPUs may be used ----

declare -a usable=() # by CPU. The keys of an indexed array come out ascending
restrictions=""

keep_only() { # what it is, list of CPUs as text: usable becomes the intersection
    local -a kept=()
    local cpu
    if ! parse_list "$2"; then
        say warning "$1 says '${2:0:60}', which is no list of CPUs, and is ignored"
        return
    fi
    for cpu in "${list[@]}"; do [ -z "${usable[cpu]:-}" ] || kept[cpu]=1; done
    [ ${#kept[@]} = ${#usable[@]} ] || restrictions+="${restrictions:+, }$1 $2"
    usable=()
    for cpu in "${!kept[@]}"; do usable[cpu]=1; done
}

read_cpus() {
    local cpu
    if read_line "$sys/devices/system/cpu/online" && parse_list "$line"; then
        :
    elif read_status "$proc/self/status" Cpus_allowed_list && parse_list "$line"; then
        say warning "cannot tell which CPUs are online: those that this process may run on are taken"
    else
        die "cannot tell which CPUs there are: neither $sys/devices/system/cpu/online nor $proc/self/status has a list"
    fi
    for cpu in "${list[@]}"; do usable[cpu]=1; done
    online=${#usable[@]}
    if read_status "$proc/self/status" Cpus_allowed_list; then keep_only "affinity" "$line"; fi
}

# ---- cgroups ----

quota_milli=0 # thousandths of a CPU; 0: no quota

# Directories of this process's cgroup in a hierarchy, innermost first, in $levels.
cgroup_levels() { # root of the mount, mount point, path of the cgroup
    local mount_root=$1 top=$root$2 path=$3 directory
    levels=()
    # In a container the mount shows a part of the hierarchy alone, and the path may be told from outside of it.
    [ "$mount_root" = / ] || path=${path#"$mount_root"}
    directory=$top${path%/}
    if [[ $path == *..* ]] || [ ! -d "$directory" ]; then directory=$top; fi
    while [ "${#directory}" -gt "${#top}" ]; do
        levels+=("$directory")
        directory=${directory%/*}
    done
    levels+=("$top")
}

take_quota() { # quota in us, period in us
    local milli
    is_number "$1" && is_number "$2" && [ "$2" -gt 0 ] || { say warning "a CPU quota of '${1:0:20} ${2:0:20}' is not understood and ignored"; return; }
    milli=$(($1 * 1000 / $2))
    [ "$milli" -gt 0 ] || milli=1
    if [ $quota_milli = 0 ] || [ "$milli" -lt $quota_milli ]; then quota_milli=$milli; fi
}

# The innermost cpuset holds: it is within those above it.
take_cpuset() { # file name...
    local level name
    for level in "${levels[@]}"; do
        for name in "$@"; do
            if read_line "$level/$name"; then
                keep_only "cpuset" "$line"
                return
            fi
        done
    done
}

# Of quotas the tightest holds, whoever set it.
take_quotas() { # version
    local level quota
    for level in "${levels[@]}"; do
        if [ "$1" = 2 ]; then
            read_line "$level/cpu.max" || continue
            [[ $line == max* ]] || take_quota "${line% *}" "${line#* }"
        else
            read_line "$level/cpu.cfs_quota_us" || continue
            quota=$line
            [ "$quota" != -1 ] || continue
            read_line "$level/cpu.cfs_period_us" || line=""
            take_quota "$quota" "$line"
        fi
    done
}

read_cgroups() {
    local id controllers path mount_root mount_point fstype options fields
    local -A path_of=()
    [ -r "$proc/self/cgroup" ] && [ -r "$proc/self/mountinfo" ] || return 0
    while IFS=: read -r id controllers path; do
        [[ $path == /* ]] || continue
        if [ "$id" = 0 ] && [ -z "$controllers" ]; then
            path_of[v2]=$path
        else
            for controllers in ${controllers//,/ }; do path_of[$controllers]=$path; done
        fi
    done 2>/dev/null <"$proc/self/cgroup"
    while read -ra fields; do
        [ ${#fields[@]} -ge 9 ] || continue
        mount_root=${fields[3]} mount_point=${fields[4]//\\040/ }
        options=,${fields[-1]},
        # Optional fields end with a dash.
        fstype=""
        for ((id = 6; id < ${#fields[@]} - 1; id++)); do [ "${fields[id]}" != - ] || fstype=${fields[id + 1]}; done
        if [ "$fstype" = cgroup2 ] && [ -n "${path_of[v2]:-}" ]; then
            cgroup_levels "$mount_root" "$mount_point" "${path_of[v2]}"
            take_cpuset cpuset.cpus.effective
            take_quotas 2
        elif [ "$fstype" = cgroup ]; then
            if [[ $options == *,cpuset,* ]] && [ -n "${path_of[cpuset]:-}" ]; then
                cgroup_levels "$mount_root" "$mount_point" "${path_of[cpuset]}"
                take_cpuset cpuset.effective_cpus cpuset.cpus
            fi
            if [[ $options == *,cpu,* ]] && [ -n "${path_of[cpu]:-}" ]; then
                cgroup_levels "$mount_root" "$mount_point" "${path_of[cpu]}"
                take_quotas 1
            fi
        fi
    done 2>/dev/null <"$proc/self/mountinfo"
}

# ---- cores and NUMA nodes ----

declare -a core_of=() node_of=() threads_of=() # core of a CPU: its lowest sibling; node of a CPU; usable CPUs of a core

read_topology() {
    local cpu file node unknown=0
    for file in "$sys"/devices/system/node/node*/cpulist; do
        node=${file%/cpulist}
        node=${node##*node}
        is_number "$node" && read_line "$file" && parse_list "$line" || continue
        for cpu in "${list[@]}"; do node_of[cpu]=$node; done
    done
    for cpu in "${!usable[@]}"; do
        : "${node_of[cpu]:=0}"
        file=$sys/devices/system/cpu/cpu$cpu/topology
        if { read_line "$file/thread_siblings_list" || read_line "$file/core_cpus_list"; } && parse_list "$line" && [[ " ${list[*]} " == *" $cpu "* ]]; then
            core_of[cpu]=${list[0]}
        else
            core_of[cpu]=$cpu
            unknown=$((unknown + 1))
        fi
        threads_of[core_of[cpu]]+="${threads_of[core_of[cpu]]:+ }$cpu"
    done
    [ $unknown = 0 ] || say warning "of $unknown CPUs the siblings are not known: each is taken for a core of its own"
}

# ---- other instances ----

declare -a held_by=() # by CPU: pid

start_time() { # pid: field 22 of stat, in $line; the name in field 2 may hold anything
    read_line "$proc/$1/stat" || return 1
    line=${line##*) }
    set -- $line
    line=${20:-}
    is_number "${line:0:9}"
}

read_claims() {
    local file pid cpus started
    [ -d "$run_dir" ] || return 0
    for file in "$run_dir"/*.cpus; do
        [ -e "$file" ] || continue
        pid=${file##*/}
        pid=${pid%.cpus}
        if ! is_number "$pid" || ! read_line "$file" || ! [[ $line =~ ^start=([0-9]+)\ cpus=([0-9,-]+)$ ]]; then
            say warning "$file is not understood and ignored"
            continue
        fi
        started=${BASH_REMATCH[1]} cpus=${BASH_REMATCH[2]}
        [ "$pid" != $$ ] || continue
        # A process that has ended, or another that has its number since.
        if ! start_time "$pid" || { [ "$started" != 0 ] && [ "$line" != "$started" ]; }; then
            $dry_run || rm -f "$file"
            continue
        fi
        parse_list "$cpus" || { say warning "$file is not understood and ignored"; continue; }
        for cpu in "${list[@]}"; do held_by[cpu]=$pid; done
    done
}

read_running() {
    local directory task pid
    for directory in "$proc"/[0-9]*; do
        pid=${directory##*/}
        is_number "$pid" && [ "$pid" != $$ ] && read_line "$directory/comm" && [ "$line" = zgateway ] || continue
        for task in "$directory"/task/[0-9]*; do
            # A thread that may run anywhere holds nothing.
            if read_status "$task/status" Cpus_allowed_list && is_number "$line"; then held_by[line]=$pid; fi
        done
    done
}

say_others() {
    local cpu pid
    local -a cpus_of=()
    for cpu in "${!held_by[@]}"; do cpus_of[held_by[cpu]]+=" $cpu"; done
    [ ${#cpus_of[@]} != 0 ] || { say others "no other instance holds CPUs"; return; }
    for pid in "${!cpus_of[@]}"; do
        format_list ${cpus_of[pid]}
        say others "process $pid holds CPUs $formatted"
    done
}

# ---- choosing ----

data=() housekeeping="" why=""
declare -a whole_in=() # by node: first threads of cores that nobody touches

# A core is whole if none of its threads, usable to us or not, is held by another instance.
find_whole_cores() {
    local core cpu
    local -a touched=()
    for cpu in "${!held_by[@]}"; do touched[${core_of[cpu]:-$cpu}]=1; done
    whole=0
    for core in "${!threads_of[@]}"; do
        [ -z "${touched[core]:-}" ] || continue
        cpu=${threads_of[core]%% *}
        whole_in[node_of[cpu]]+="${whole_in[node_of[cpu]]:+ }$cpu"
        whole=$((whole + 1))
    done
}

# How many words there are, in $counted.
count() { counted=$#; }

# Does a core of this node have a second thread that could be the housekeeper's?
has_siblings() { # node
    local cpu
    for cpu in ${whole_in[$1]:-}; do
        count ${threads_of[core_of[cpu]]}
        [ $counted -lt 2 ] || return 0
    done
    return 1
}

# How many data cores a node has room for with the housekeeper beside them, in $room.
find_room() { # node
    count ${whole_in[$1]:-}
    room=$((counted - reserve))
    has_siblings "$1" || [ $room -lt 2 ] || room=$((room - 1))
    [ $room -ge 0 ] || room=0
}

# The nodes to take cores from, best first, in $nodes: most room first, of equals the lower number. Where a number of cores is asked for, the node that is just large enough comes before them.
order_nodes() {
    local node i best="" best_room=0
    local -a room_of=()
    nodes=()
    if [ -n "$numa" ]; then
        nodes=("$numa")
        why="as --numa says"
        return
    fi
    for node in "${!whole_in[@]}"; do
        find_room "$node"
        room_of[node]=$room
        for ((i = ${#nodes[@]}; i > 0 && room_of[nodes[i - 1]] < room; i--)); do nodes[i]=${nodes[i - 1]}; done
        nodes[i]=$node
        if [ -n "$cores" ] && [ $room -ge "$cores" ] && { [ -z "$best" ] || [ $room -lt $best_room ]; }; then best=$node best_room=$room; fi
    done
    if [ -z "$cores" ]; then
        why="the node with the most free cores"
    elif [ -n "$best" ]; then
        nodes=("$best" "${nodes[@]}")
        why="the node with the fewest free cores that are enough"
    fi
}

is_taken() { [[ " ${data[*]:-} " == *" $1 "* ]]; }

# CPUs in the order in which they are taken, in $candidates: first threads of whole cores; other threads that nobody holds; with --share those that are held.
list_candidates() {
    local node cpu skip=$reserve
    local -a seen=() reserved=() held=()
    candidates=()
    for node in "${nodes[@]}"; do
        for cpu in ${whole_in[$node]:-}; do
            [ -z "${seen[cpu]:-}" ] || continue
            seen[cpu]=1
            # The lowest cores are left to the host: they serve most of its interrupts.
            if [ $skip -gt 0 ]; then
                skip=$((skip - 1))
                reserved[core_of[cpu]]=1
            else
                candidates+=("$cpu")
            fi
        done
    done
    first_threads=${#candidates[@]}
    for cpu in "${!usable[@]}"; do
        [ -z "${seen[cpu]:-}" ] && [ -z "${reserved[core_of[cpu]]:-}" ] || continue
        [ -z "$numa" ] || [ "${node_of[cpu]}" = "$numa" ] || continue
        if [ -n "${held_by[cpu]:-}" ]; then held+=("$cpu"); else candidates+=("$cpu"); fi
    done
    ! $share || candidates+=(${held[@]+"${held[@]}"})
}

choose_count() {
    local limit=""
    if [ $quota_milli != 0 ]; then
        limit=$((quota_milli / 1000))
        [ $limit -ge 1 ] || limit=1
    fi
    wanted=$cores
    if [ -z "$wanted" ]; then
        room=1
        [ ${#nodes[@]} = 0 ] || find_room "${nodes[0]}"
        wanted=$((room < 1 ? 1 : room))
        [ "$wanted" -le $CORES_MAX ] || wanted=$CORES_MAX
    fi
    if [ -n "$limit" ] && [ "$wanted" -gt "$limit" ]; then
        say quota "$wanted data cores would be throttled: the quota gives $limit"
        wanted=$limit
    fi
}

choose_housekeeping() {
    local cpu sibling
    [ -z "$housekeeping" ] || { say housekeeping "CPU $housekeeping, of its own"; return; }
    for cpu in "${data[@]}"; do
        for sibling in ${threads_of[core_of[cpu]]}; do
            [ "$sibling" != "$cpu" ] && [ -z "${held_by[sibling]:-}" ] && ! is_taken "$sibling" || continue
            housekeeping=$sibling
            say housekeeping "CPU $sibling, the second thread of data CPU $cpu"
            return
        done
    done
    for cpu in "${candidates[@]}"; do
        is_taken "$cpu" && continue
        housekeeping=$cpu
        say housekeeping "CPU $cpu, of its own"
        return
    done
    housekeeping=${data[-1]}
    say housekeeping "CPU $housekeeping, which is a data core's too: no other is free; it needs little"
}

choose() {
    local cpu sharing=0 seconds=0 used=()
    local -a in_nodes=()
    find_whole_cores
    order_nodes
    list_candidates
    choose_count
    if [ ${#candidates[@]} -lt "$wanted" ]; then
        die "$wanted data cores are wanted and ${#candidates[@]} of ${#usable[@]} usable CPUs are free${numa:+ on NUMA node $numa}; allowed: --cores up to that, or --share to take CPUs that others hold"
    fi
    # Without second threads the housekeeper takes the lowest core, if there is one to spare.
    cpu=${candidates[0]}
    count ${threads_of[core_of[cpu]]}
    if [ "$first_threads" -gt "$wanted" ] && [ $counted -lt 2 ]; then
        housekeeping=$cpu
        candidates=("${candidates[@]:1}")
        first_threads=$((first_threads - 1))
    fi
    data=("${candidates[@]:0:wanted}")
    for cpu in "${data[@]}"; do
        in_nodes[node_of[cpu]]=1
        [ -z "${held_by[cpu]:-}" ] || sharing=$((sharing + 1))
    done
    [ "$wanted" -le "$first_threads" ] || seconds=$((wanted - first_threads - sharing))
    used=("${!in_nodes[@]}")
    format_list "${data[@]}"
    cpu=$formatted
    format_list "${used[@]}"
    if [ ${#used[@]} = 1 ]; then
        say data "$wanted on CPUs $cpu of NUMA node $formatted${why:+ ($why)}"
    else
        say data "$wanted on CPUs $cpu of NUMA nodes $formatted: none has room for all"
    fi
    [ $seconds -le 0 ] || say warning "there are too few physical cores: $seconds of the data cores run on a thread whose core is in use already"
    [ $sharing = 0 ] || say warning "$sharing of the data cores run on CPUs that another instance holds (--share)"
    choose_housekeeping
}

# ---- limits ----

limits() {
    local most=$FILES_WANTED hard
    if read_line "$proc/sys/fs/nr_open" && is_number "$line" && [ "$line" -lt $most ]; then most=$line; fi
    hard=$(ulimit -Hn)
    if ! $dry_run; then
        [ "$hard" = unlimited ] || [ "$hard" -ge "$most" ] || ulimit -Hn "$most" 2>/dev/null
        hard=$(ulimit -Hn)
        ulimit -Sn "$hard" 2>/dev/null
        ulimit -Hl unlimited 2>/dev/null && ulimit -Sl unlimited 2>/dev/null
    fi
    if [ "$hard" = unlimited ] || [ "$hard" -ge "$most" ]; then
        say limits "files $hard"
    else
        say limits "files $hard$($dry_run && echo ", to be raised to $most where the host lets it" || echo ", which could not be raised to $most: a data core then holds at most so many connections")"
    fi
    if [ "$(ulimit -Hl)" = unlimited ]; then
        say limits "locked memory unlimited"
    else
        say limits "locked memory $(ulimit -Hl) KiB$($dry_run || echo ", which could not be raised: it suffices unless the kernel accounts rings (before 5.12)")"
    fi
    if read_line "$proc/sys/net/core/somaxconn" && is_number "$line" && [ "$line" -lt $BACKLOG_WANTED ]; then
        say limits "net.core.somaxconn is $line: so many connections may wait to be accepted; $BACKLOG_WANTED are asked for"
    fi
}

# ---- the run directory ----

# From here until the claim is written no other launch chooses.
lock_run_dir() {
    lock=""
    $dry_run && return
    if ! mkdir -p "$run_dir" 2>/dev/null || ! [ -w "$run_dir" ]; then
        say warning "$run_dir cannot be written: other instances find this one by its pinned threads alone"
        return
    fi
    command -v flock >/dev/null || { say warning "without flock two instances that are started at once may choose the same CPUs"; return; }
    exec {lock}>"$run_dir/lock"
    flock -w 30 "$lock" || say warning "another launch has held $run_dir/lock for 30 s: going on without it"
}

claim() {
    local cpu all=() started=0
    $dry_run && return
    for cpu in "${data[@]}" "$housekeeping"; do
        # The core's other threads too: they are not worth a data core to anybody.
        all+=(${threads_of[core_of[cpu]]})
    done
    start_time $$ && started=$line
    format_list "${all[@]}"
    if [ -w "$run_dir" ]; then
        printf 'start=%s cpus=%s\n' "$started" "$formatted" >"$run_dir/$$.cpus" || say warning "$run_dir/$$.cpus cannot be written"
    fi
    [ -z "$lock" ] || exec {lock}>&-
}

# ---- the program ----

find_program() {
    local here candidate
    here=$(cd "$(dirname "$0")" && pwd)
    if [ -z "$program" ]; then
        for candidate in "$here/zgateway" "$here/../build/zgateway" "$(command -v zgateway)"; do
            if [ -x "$candidate" ] && [ -f "$candidate" ]; then
                program=$candidate
                return
            fi
        done
        die "there is no zgateway beside this script, in ../build, or on the PATH; allowed: --program FILE"
    fi
    { [ -x "$program" ] && [ -f "$program" ]; } || die "$program is no program"
}

want() { # option, value...
    [ $# -ge 2 ] || die "$1 needs a value; $(basename "$0") --help lists what is allowed" 2
}

while [ $# -gt 0 ]; do
    case "$1" in
    -c | --config) want "$@"; config=$2; shift ;;
    --cores) want "$@"; cores=$2; shift ;;
    --numa) want "$@"; numa=$2; shift ;;
    --reserve) want "$@"; reserve=$2; shift ;;
    --run-dir) want "$@"; run_dir=$2; shift ;;
    --program) want "$@"; program=$2; shift ;;
    --share) share=true ;;
    --dry-run) dry_run=true ;;
    -h | --help) sed -n '2,20s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    *) die "'$1' is no option; $(basename "$0") --help lists what is allowed, and options of zgateway stand behind --" 2 ;;
    esac
    shift
done
[ -z "$cores" ] || { is_number "$cores" && [ "$((10#$cores))" -ge 1 ] && [ "$((10#$cores))" -le $CORES_MAX ]; } || die "--cores '$cores' is out of range; allowed: 1 .. $CORES_MAX" 2
[ -z "$numa" ] || is_number "$numa" || die "--numa '$numa' is no number of a node" 2
is_number "$reserve" || die "--reserve '$reserve' is no number of cores" 2
cores=${cores:+$((10#$cores))} numa=${numa:+$((10#$numa))} reserve=$((10#$reserve))
[ -z "$config" ] || [ -r "$config" ] || die "$config cannot be read" 2

# What is said goes to standard error, where zgateway's log goes; of a dry run it is the result.
$dry_run || exec 3>&1 1>&2

find_program
read_cpus
read_cgroups
[ ${#usable[@]} -gt 0 ] || die "no CPU is left: $online online, restricted by $restrictions"
read_topology
format_list "${!usable[@]}"
say CPUs "$online online, ${#usable[@]} usable: $formatted${restrictions:+ ($restrictions)}; ${#threads_of[@]} physical cores"
if [ $quota_milli != 0 ]; then
    printf -v line '%d.%03d' $((quota_milli / 1000)) $((quota_milli % 1000))
    say quota "$line CPUs"
fi
if [ -n "$numa" ]; then
    [ -d "$sys/devices/system/node/node$numa" ] || [ "$numa" = 0 ] || die "there is no NUMA node $numa" 2
fi
lock_run_dir
read_claims
read_running
say_others
choose
limits
say memory "of the node of each core, by first touch"

command=("$program")
[ -z "$config" ] || command+=(-c "$config")
command+=(--set "cores.cpus=$(IFS=,; echo "${data[*]}")" --set "cores.data=$wanted" --set "cores.housekeeping_cpu=$housekeeping" "$@")
printf -v line '%q ' "${command[@]}"
say exec "$line"
$dry_run && exit 0
claim
exec 1>&3 3>&-
exec "${command[@]}"
