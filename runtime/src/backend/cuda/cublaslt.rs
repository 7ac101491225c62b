//! cuBLASLt's int8 product, what kernels are measured beside. Its library is looked for at run time; a machine without
//! it measures without it.
#![allow(unsafe_code, reason = "calls of the library, each with its reason")]

use super::card::CudaCard;
use crate::backend::device::driver::{CardError, Context, DeviceMemory, Stream};
use cudarc::cublaslt::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Every function of the library that is called here, by way of `cudarc`, which panics where one is missing.
const SYMBOLS: [&str; 13] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];

/// Bytes that it may work with.
const WORKSPACE: u64 = 32 << 20;

/// Ways to compute a product that are asked for.
const WAYS: usize = 4;

/// Makes a card the calling thread's.
fn current(context: &Context) -> Result<(), String> {
    let card = context.card().as_any().downcast_ref::<CudaCard>();
    let card = card.ok_or("cuBLASLt computes on NVIDIA's cards")?;
    card.current().map_err(|refusal| refusal.name.into_owned())
}

/// The library with a card.
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceMemory,
    context: Arc<Context>,
    version: usize,
}

/// y = W x of int8 with int32 sums: W `[rows][cols]` and x `[n][cols]` row by row, y `[n][rows]`.
pub(crate) struct Product<'a> {
    library: &'a CublasLt,
    desc: sys::cublasLtMatmulDesc_t,
    /// Of W, x and y.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    ways: Vec<sys::cublasLtMatmulHeuristicResult_t>,
}

impl CublasLt {
    /// The library; or why there is none, in words.
    ///
    /// # Errors
    /// Where the card has no memory for it.
    pub(crate) fn open(context: &Arc<Context>) -> Result<Result<Self, String>, CardError> {
        // SAFETY: it opens the library if there is one; the initialisers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Ok(Err("libcublasLt.so was not found".into()));
        }
        // SAFETY: it is there, as was just seen.
        let library = unsafe { sys::culib() };
        let missing = SYMBOLS.iter().find(|name| {
            // SAFETY: the symbol is only looked up, not called.
            unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
        });
        if let Some(missing) = missing {
            return Ok(Err(format!("libcublasLt.so lacks {missing}")));
        }
        if let Err(why) = current(context) {
            return Ok(Err(why));
        }
        let workspace = DeviceMemory::new(context, WORKSPACE, "the working memory of cuBLASLt")?;
        let handle = match result::create_handle() {
            Ok(handle) => handle,
            Err(e) => return Ok(Err(format!("cublasLtCreate: {e}"))),
        };
        // SAFETY: it takes nothing.
        let version = unsafe { sys::cublasLtGetVersion() };
        Ok(Ok(Self { handle, workspace, context: Arc::clone(context), version }))
    }

    /// Its version, in words.
    pub(crate) fn version(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// The product of this shape; or why it has none.
    pub(crate) fn product(&self, rows: usize, cols: usize, n: usize) -> Result<Product<'_>, String> {
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA as TRANSPOSE;
        use sys::cudaDataType_t::{CUDA_R_8I, CUDA_R_32I};
        let said = |e: result::CublasError| format!("cuBLASLt: {e}");
        current(&self.context)?;
        let desc = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32I, CUDA_R_32I);
        let desc = desc.map_err(said)?;
        // From here on what was made is destroyed with it.
        let mut product =
            Product { library: self, desc, layouts: [std::ptr::null_mut(); 3], ways: Vec::new() };
        let transposed: i32 = 1;
        // SAFETY: the description lives, and the attribute is a 32-bit number.
        unsafe { result::set_matmul_desc_attribute(desc, TRANSPOSE, (&raw const transposed).cast(), 4) }
            .map_err(said)?;
        // Column by column, as the library counts: a row of ours is a column of its.
        let shapes = [(CUDA_R_8I, cols, rows), (CUDA_R_8I, cols, n), (CUDA_R_32I, rows, n)];
        for (layout, (ty, height, width)) in product.layouts.iter_mut().zip(shapes) {
            let made = result::create_matrix_layout(ty, height as u64, width as u64, height as i64);
            *layout = made.map_err(said)?;
        }
        product.ways = product.ask().map_err(said)?;
        match product.ways.is_empty() {
            true => Err("cuBLASLt has no way to compute it".into()),
            false => Ok(product),
        }
    }
}

impl Product<'_> {
    /// The ways that the library thinks fastest.
    fn ask(&self) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, result::CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as BYTES;
        let pref = result::create_matmul_pref()?;
        let most = WORKSPACE as usize;
        // SAFETY: the preference lives, and the attribute is a `size_t`.
        let set = unsafe { result::set_matmul_pref_attribute(pref, BYTES, (&raw const most).cast(), 8) };
        let [w, x, y] = self.layouts;
        // SAFETY: an array of plain numbers, of which zeros are one; the library fills those that it counts.
        let mut ways: [sys::cublasLtMatmulHeuristicResult_t; WAYS] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        let asked = set.and_then(|()| {
            // SAFETY: all descriptions live, and there is room for as many results as are asked for.
            unsafe {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.library.handle,
                    self.desc,
                    w,
                    x,
                    y,
                    y,
                    pref,
                    WAYS as i32,
                    ways.as_mut_ptr(),
                    &raw mut count,
                )
            }
            .result()
        });
        // SAFETY: made above, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(pref) };
        match asked {
            Ok(()) => Ok(ways[..usize::try_from(count).unwrap_or(0).min(WAYS)].to_vec()),
            // A shape that it does not take.
            Err(e) if e.0 == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// How many ways there are to compute it, never none.
    pub(crate) fn ways(&self) -> usize {
        self.ways.len()
    }

    /// Gives it to `stream`, computed in the way of this number; `w`, `x` and `y` are addresses on the card.
    ///
    /// # Safety
    /// They are those of as many bytes as the shape says, in allocations that live until the stream is past it, and
    /// nothing else that uses the same library runs at the same time.
    ///
    /// # Errors
    /// What the library says, in words.
    pub(crate) unsafe fn give(&self, stream: &Stream, way: usize, [w, x, y]: [u64; 3]) -> Result<(), String> {
        let way = self.ways.get(way).ok_or("cuBLASLt has no such way")?;
        let (one, zero) = (1i32, 0i32);
        let at = |address: u64| address as usize as *mut c_void;
        let [of_w, of_x, of_y] = self.layouts;
        current(&self.library.context)?;
        // SAFETY: all descriptions live; the caller vouches for the addresses; factors are of the type that was named.
        unsafe {
            sys::cublasLtMatmul(
                self.library.handle,
                self.desc,
                (&raw const one).cast(),
                at(w),
                of_w,
                at(x),
                of_x,
                (&raw const zero).cast(),
                at(y),
                of_y,
                at(y),
                of_y,
                &raw const way.algo,
                at(self.library.workspace.address()),
                WORKSPACE as usize,
                stream.raw() as sys::cudaStream_t,
            )
        }
        .result()
        .map_err(|e| format!("cuBLASLt: {e}"))
    }
}

impl Drop for Product<'_> {
    fn drop(&mut self) {
        let _ = current(&self.library.context);
        for layout in self.layouts.iter().filter(|layout| !layout.is_null()) {
            // SAFETY: made in `product`, destroyed once.
            let _ = unsafe { result::destroy_matrix_layout(*layout) };
        }
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_desc(self.desc) };
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        let _ = current(&self.context);
        // SAFETY: made in `open`, destroyed once; products borrow it, so that none is left.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
