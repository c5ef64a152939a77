complete -c rdcp -s t -l target-directory -d 'Copy into the directory DIR, which may be HOST:DIR; all other arguments are SRC' -r
complete -c rdcp -l files-from -d 'Copy only what FILE, or standard input (-), lists: paths in SRC, one a line, with the directories that lead to them; directories come whole with -r, and with a slash behind their path with the entries in them' -r
complete -c rdcp -l check -d 'Compare DIR, which may be HOST:DIR, with the manifest FILE, its two arguments, and copy nothing; what differs is named on standard output' -r -f -a "disk\t'What the disk has stored'
cached\t'What the page cache has, where it has it'"
complete -c rdcp -l manifest -d 'Write path, size, mode, time and BLAKE3 of each file of the copy to FILE, for --check; only if all is copied' -r
complete -c rdcp -l manifest-b3sum -d 'Write the BLAKE3 of each file of the copy to FILE, for b3sum --check in its directory' -r
complete -c rdcp -l to -d 'Copy to HOST:PATH as well, or to each of a list such as \'gpu[01-08,12]:PATH\'; may be repeated' -r
complete -c rdcp -l hosts -d 'Copy to each host that FILE, or standard input (-), names, one a line, where DST is the path; @GROUP asks ClusterShell\'s nodeset, and slurm stands for the nodes of the allocation' -r
complete -c rdcp -l hosts-failed -d 'Write the hosts that failed to FILE, for --hosts; if none did, FILE is removed' -r -F
complete -c rdcp -l stall -d 'Pass over a host that has stood still for so many seconds' -r
complete -c rdcp -l join -d 'Add HOST, or HOST:PATH, the only argument, to the copy to several hosts that runs here as JOB, the name that it gives itself as it begins, and wait for what becomes of that host' -r
complete -c rdcp -l exclude -d 'Exclude what matches PATTERN, written as for rsync; of several patterns, those of --include among them, the first that matches decides' -r
complete -c rdcp -l include -d 'Include what matches PATTERN, although an --exclude behind it does' -r
complete -c rdcp -l exclude-from -d 'Exclude what matches a line of FILE, or of standard input (-); lines that are empty or begin with # or ; are skipped, those that begin with "+ " include, and a line with ! drops all patterns before it' -r
complete -c rdcp -l include-from -d 'Include what matches a line of FILE, or of standard input (-); those that begin with "- " exclude' -r
complete -c rdcp -l chmod -d 'Change the modes of copies, such as D755,F644 or u+rwX,go-w; may be repeated' -r
complete -c rdcp -l chown -d 'Give all copies this owner, group, or both, which only root can' -r
complete -c rdcp -l verify -d 'Read all data back from the disk and compare it before its file appears; not for copies within one host' -r -f -a "disk\t'What the disk has stored'"
complete -c rdcp -l digest-cache -d 'With --checksum, keep the digests of what was read in FILE, an absolute path at both ends, so that files that have not changed since are not read again [default FILE: ~/.cache/rdma-pipe/digests]' -r
complete -c rdcp -l modify-window -d 'Take times that differ by at most so many seconds for the same, as on FAT and some servers' -r
complete -c rdcp -l max-delete -d 'Delete at most N entries' -r
complete -c rdcp -l link-dest -d 'Hard-link files that are unchanged in DIR, an earlier copy; a relative DIR begins at DST; may be repeated' -r
complete -c rdcp -l snapshot -d 'Copy into DST/NAME, with hard links to what is unchanged in the generation that the link DST/latest leads to; that leads to NAME once all has succeeded, and then NAME cannot be copied into again; DST is made if it is missing' -r
complete -c rdcp -l backup-dir -d 'Move what is replaced or deleted to DIR, which is relative to DST, on the same file system, and never deleted itself' -r
complete -c rdcp -l rsh -d 'The command that runs a program on a host, instead of ssh; RDCP_RSH in the environment sets it too' -r
complete -c rdcp -l launcher -d 'What runs a program on a host: ssh, slurm (srun in an allocation, which copies to several of its nodes take by themselves), or a command with %h for the host, and %c for what is run there if that is not to be its last word, such as \'mpirun -q -n 1 --host %h sh -c %c\'' -r
complete -c rdcp -l parallel -d 'Log in to so many hosts at once' -r
complete -c rdcp -s P -l ssh-port -d 'ssh\'s port' -r
complete -c rdcp -s i -d 'ssh\'s key; may be repeated' -r
complete -c rdcp -s J -d 'The host that ssh goes through' -r
complete -c rdcp -s F -d 'ssh\'s configuration' -r
complete -c rdcp -s o -d 'An option of ssh\'s, such as Compression=no; may be repeated' -r
complete -c rdcp -l agent -d 'The agent\'s program on other hosts [default: rdma-pipe-agent]' -r
complete -c rdcp -l via -d 'The address or interface, of either end, that the data is to go by' -r
complete -c rdcp -l transport -d 'Which transport carries the data' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rdcp -l encrypt -d 'Whether the data is encrypted' -r -f -a "auto\t'On TCP between different hosts; not on RDMA'
always\t'On every transport'
never\t'On none; data is still checked against accidents'"
complete -c rdcp -l compress -d 'How the sender compresses the data; ignored by a receiver' -r -f -a "off\t'Send data as it is'
auto\t'LZ4 or Zstandard, as strong as the line leaves time for; data as it is where that goes faster or does not shrink'
lz4\t'LZ4'
zstd\t'Zstandard, level 1'"
complete -c rdcp -l lanes -d 'Connections to spread the data over, 1 to 16; the lower of the two ends\' values applies [default: 2 on TCP and software RDMA, 1 on RDMA adapters]' -r
complete -c rdcp -l buffer -d 'Memory for data in flight at this end; a larger buffer smooths a source or sink that works in bursts' -r
complete -c rdcp -l chunk -d 'Largest chunk, the unit that is sent, checked and sent again: 4K to 1M; the lower of the two ends\' values applies' -r
complete -c rdcp -l port-range -d 'Ports that the listening end may use: for RDMA, and for TCP where no port is given' -r
complete -c rdcp -l reconnect -d 'Seconds to wait for a lost connection to come back, 0 to give up at once; the lower of the two ends\' values applies' -r
complete -c rdcp -l bwlimit -d 'Most bytes a second that the sender reads, such as 200M; ignored by a receiver' -r
complete -c rdcp -l json -d 'Report as JSON, one object per line, to FILE, or to standard output if that carries no data' -r -F
complete -c rdcp -l json-fd -d 'Report as JSON to the open file descriptor FD' -r
complete -c rdcp -l report -d 'Write a page to FILE.html, to be looked at: rate and what limited over time, events, and what to change; also when it fails' -r -F
complete -c rdcp -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rdcp -s T -l no-target-directory -d 'DST is the name of the copy, also where a directory of that name is'
complete -c rdcp -s b -l backup -d 'Said by --backup-dir DIR already'
complete -c rdcp -s 0 -l from0 -d 'A zero byte, not a line end, ends each path in FILE'
complete -c rdcp -s n -l dry-run -d 'Change nothing: say what would be copied where; with --sync, what would be changed, as --itemize-changes does'
complete -c rdcp -l watch -d 'Go on: watch SRC, which must be on this host, and copy again what changes, until a signal; a host that is lost is waited for'
complete -c rdcp -l stats -d 'Print at the end what the copy came to, in the lines of rsync\'s --stats'
complete -c rdcp -l human-readable -d 'Shorten the numbers of --stats: 1.23M, in powers of 1000; elsewhere they are anyway'
complete -c rdcp -l no-human-readable -d 'Write the numbers of --stats without commas'
complete -c rdcp -s r -l recursive -d 'Copy directories with everything in them'
complete -c rdcp -l no-mode -d 'Give copies the mode and ACL of new files instead of their source\'s'
complete -c rdcp -l no-owner -d 'Do not preserve owner and group, which only root can'
complete -c rdcp -l no-times -d 'Do not preserve the times of last modification and access'
complete -c rdcp -l no-xattrs -d 'Do not preserve extended attributes and ACLs'
complete -c rdcp -l no-hard-links -d 'Copy hard links as separate files'
complete -c rdcp -l no-sparse -d 'Write the holes of sparse files out as zeros'
complete -c rdcp -l no-symlinks -d 'Skip symbolic links'
complete -c rdcp -l no-specials -d 'Skip FIFOs, sockets and devices'
complete -c rdcp -s x -l one-file-system -d 'Stay on the file system that SRC is on; directories on which others are mounted are copied empty'
complete -c rdcp -s L -l copy-links -d 'Copy what symbolic links lead to instead of the links'
complete -c rdcp -s k -l copy-dirlinks -d 'Copy the directories that symbolic links lead to instead of those links'
complete -c rdcp -l copy-unsafe-links -d 'Copy what symbolic links lead to if that is outside SRC; absolute links are'
complete -c rdcp -l safe-links -d 'Skip symbolic links that lead out of SRC; absolute ones do'
complete -c rdcp -l numeric-ids -d 'Keep the numbers of owners and groups, instead of those that their names have at the destination'
complete -c rdcp -l in-place -d 'Write into existing files instead of replacing them once all data has arrived'
complete -c rdcp -l append-verify -d 'With --sync, append to large files that are shorter than at the source, whose beginning is compared by digests; leave those that are not shorter'
complete -c rdcp -l fsync -d 'Flush each file, then its directory, to stable storage before the copy ends'
complete -c rdcp -l sync -d 'Copy only what differs from what is there: files by size and time of last modification'
complete -c rdcp -l checksum -d 'With --sync, compare files by contents, not by size and time'
complete -c rdcp -l delete -d 'Delete what is not at the source, in each directory after all that comes into it has been copied'
complete -c rdcp -l delete-after -d 'Delete at the end instead, and only if everything was copied; not where several hosts have SRC, nor with a list that is too long for one session'
complete -c rdcp -l delete-excluded -d 'Delete excluded entries as well'
complete -c rdcp -l force-empty -d 'Delete also where the source directory is empty, which may be a disk that is not mounted'
complete -c rdcp -l existing -d 'Make nothing that is not there; only bring up to date what is'
complete -c rdcp -l ignore-existing -d 'Leave what is there as it is; only make what is not'
complete -c rdcp -s u -l update -d 'Leave files that are newer at the destination'
complete -c rdcp -l find-moves -d 'Link or copy files within the destination that have been moved or renamed at the source: found by size and time, proven by digest; deletes at the end where --delete does'
complete -c rdcp -l itemize-changes -d 'Print a line for each entry that is changed, with the letters of rsync\'s -i'
complete -c rdcp -l no-bootstrap -d 'Fail where a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there'
complete -c rdcp -l relay -d 'Send the data through the connections that ssh has made, by way of this host'
complete -c rdcp -s v -l verbose -d 'Print the route of the data, how files were read and written, what limited the transfer, and the bandwidth'
complete -c rdcp -s q -l quiet -d 'Print errors only, even with -v or --progress'
complete -c rdcp -l progress -d 'Show progress and what limits it: as a bar on a terminal, which is the default there, else as a line every 5 seconds'
complete -c rdcp -l show-config -d 'Print what each option would be set to, and where that is from; do nothing else'
complete -c rdcp -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdcp -s V -l version -d 'Print version'
