package sqlite

import "syscall"

// networkFS names the network file system that dir is on, or is empty.
func networkFS(dir string) string {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return ""
	}
	switch uint32(st.Type) { // the kernel's magic numbers have 32 bits
	case 0x6969:
		return "NFS"
	case 0x517b, 0xff534d42, 0xfe534d42:
		return "SMB"
	case 0x5346414f, 0x6b414653:
		return "AFS"
	case 0x00c36400:
		return "Ceph"
	}
	return ""
}
