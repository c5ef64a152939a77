//! RDMA verbs, loaded at run time.
