pub(super) use super::avx2::*;
