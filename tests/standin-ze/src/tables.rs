//! The tables of functions that Level Zero's loader asks for, in the order of `ze_ddi.h` of API 1.4; null where a function is not
//! here, which the loader then refuses by itself.

use crate::{device, event, kernel, list, memory, module};
use level_zero_sys::ze_result_t;

/// The oldest header that has these tables so.
const MAJOR: u32 = 1;

macro_rules! entry {
    (-) => {
        0
    };
    ($function:path) => {
        $function as *const () as usize
    };
}

macro_rules! table {
    ($get:ident: $($entry:tt $(:: $function:ident)?),* $(,)?) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(version: u32, table: *mut usize) -> ze_result_t {
            // SAFETY: the loader's table of the version that it names.
            unsafe { fill(version, table, &[$(entry!($entry $(:: $function)?)),*]) }
        }
    };
}

/// Writes a table of the loader's.
unsafe fn fill(version: u32, table: *mut usize, entries: &[usize]) -> ze_result_t {
    if table.is_null() {
        return ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER;
    }
    if version >> 16 != MAJOR {
        return ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_VERSION;
    }
    for (i, entry) in entries.iter().enumerate() {
        // SAFETY: tables only ever grow at their end.
        unsafe { table.add(i).write(*entry) };
    }
    ze_result_t::ZE_RESULT_SUCCESS
}

table!(zeGetGlobalProcAddrTable: device::zeInit);
table!(zeGetDriverProcAddrTable: device::zeDriverGet, device::zeDriverGetApiVersion, -, -, -, -);
table!(zeGetDeviceProcAddrTable: device::zeDeviceGet, -, device::zeDeviceGetProperties, device::zeDeviceGetComputeProperties, device::zeDeviceGetModuleProperties, device::zeDeviceGetCommandQueueGroupProperties, device::zeDeviceGetMemoryProperties, -, -, -, -, -, device::zeDeviceCanAccessPeer, -, -, -, -, -);
table!(zeGetDeviceExpProcAddrTable: -);
table!(zeGetContextProcAddrTable: device::zeContextCreate, device::zeContextDestroy, -, -, -, -, -, -, -);
table!(zeGetCommandQueueProcAddrTable: list::zeCommandQueueCreate, list::zeCommandQueueDestroy, list::zeCommandQueueExecuteCommandLists, -);
table!(zeGetCommandListProcAddrTable: list::zeCommandListCreate, list::zeCommandListCreateImmediate, list::zeCommandListDestroy, list::zeCommandListClose, -, list::zeCommandListAppendWriteGlobalTimestamp, list::zeCommandListAppendBarrier, -, list::zeCommandListAppendMemoryCopy, list::zeCommandListAppendMemoryFill, -, -, -, -, -, -, -, -, -, -, list::zeCommandListAppendEventReset, -, list::zeCommandListAppendLaunchKernel, -, -, -, -, -);
table!(zeGetImageProcAddrTable: -, -, -, -);
table!(zeGetImageExpProcAddrTable: -, -);
table!(zeGetFenceProcAddrTable: -, -, -, -, -);
table!(zeGetEventPoolProcAddrTable: event::zeEventPoolCreate, event::zeEventPoolDestroy, -, -, -);
table!(zeGetEventProcAddrTable: event::zeEventCreate, event::zeEventDestroy, -, event::zeEventHostSynchronize, event::zeEventQueryStatus, event::zeEventHostReset, -);
table!(zeGetEventExpProcAddrTable: -);
table!(zeGetModuleProcAddrTable: module::zeModuleCreate, module::zeModuleDestroy, -, -, -, -, -, -, -);
table!(zeGetModuleBuildLogProcAddrTable: module::zeModuleBuildLogDestroy, module::zeModuleBuildLogGetString);
table!(zeGetKernelProcAddrTable: kernel::zeKernelCreate, kernel::zeKernelDestroy, -, kernel::zeKernelSetGroupSize, -, -, kernel::zeKernelSetArgumentValue, -, -, -, kernel::zeKernelGetProperties, -);
table!(zeGetKernelExpProcAddrTable: -, -);
table!(zeGetSamplerProcAddrTable: -, -);
table!(zeGetPhysicalMemProcAddrTable: -, -);
table!(zeGetMemProcAddrTable: -, memory::zeMemAllocDevice, memory::zeMemAllocHost, -, -, -, -, -, -, memory::zeMemFreeExt);
table!(zeGetVirtualMemProcAddrTable: -, -, -, -, -, -, -);
table!(zeGetFabricVertexExpProcAddrTable: -, -, -, -);
table!(zeGetFabricEdgeExpProcAddrTable: -, -, -);

macro_rules! empty {
    ($($get:ident),* $(,)?) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $get(version: u32, table: *mut usize) -> ze_result_t {
                // SAFETY: nothing is written.
                unsafe { fill(version, table, &[]) }
            }
        )*
    };
}

// Tables of newer headers, of tools and of management, which loaders want to see even where nobody asks for what is in them.
empty!(
    zeGetCommandListExpProcAddrTable,
    zeGetDriverExpProcAddrTable,
    zeGetMemExpProcAddrTable,
    zeGetRTASBuilderExpProcAddrTable,
    zeGetRTASParallelOperationExpProcAddrTable,
    zesGetDeviceProcAddrTable,
    zesGetDiagnosticsProcAddrTable,
    zesGetDriverProcAddrTable,
    zesGetEngineProcAddrTable,
    zesGetFabricPortProcAddrTable,
    zesGetFanProcAddrTable,
    zesGetFirmwareProcAddrTable,
    zesGetFrequencyProcAddrTable,
    zesGetLedProcAddrTable,
    zesGetMemoryProcAddrTable,
    zesGetPerformanceFactorProcAddrTable,
    zesGetPowerProcAddrTable,
    zesGetPsuProcAddrTable,
    zesGetRasProcAddrTable,
    zesGetSchedulerProcAddrTable,
    zesGetStandbyProcAddrTable,
    zesGetTemperatureProcAddrTable,
    zetGetCommandListProcAddrTable,
    zetGetContextProcAddrTable,
    zetGetDebugProcAddrTable,
    zetGetDeviceProcAddrTable,
    zetGetKernelProcAddrTable,
    zetGetMetricGroupExpProcAddrTable,
    zetGetMetricGroupProcAddrTable,
    zetGetMetricProcAddrTable,
    zetGetMetricQueryPoolProcAddrTable,
    zetGetMetricQueryProcAddrTable,
    zetGetMetricStreamerProcAddrTable,
    zetGetModuleProcAddrTable,
    zetGetTracerExpProcAddrTable,
);
