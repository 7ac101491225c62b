//! The bindings against the header: sizes, offsets of members, constants.
//!
//! Needs `cc` and the header of `libze-dev`; without the header it says so and passes, unless `GANTRY_REQUIRE_ZE` is set.

use level_zero_sys::*;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "/usr/include/level_zero/ze_api.h";

/// What C is asked, and what is so here.
#[derive(Default)]
struct Questions(Vec<(String, u64)>);

macro_rules! structure {
    ($to:ident, $name:ident { $($member:ident),* }) => {
        $to.0.push((format!("sizeof({})", stringify!($name)), size_of::<$name>() as u64));
        $to.0.push((format!("_Alignof({})", stringify!($name)), align_of::<$name>() as u64));
        $($to.0.push((
            format!("offsetof({}, {})", stringify!($name), stringify!($member)),
            offset_of!($name, $member) as u64,
        ));)*
    };
}

macro_rules! constants {
    ($to:ident, $type:ident { $($name:ident),* }) => {
        $($to.0.push((stringify!($name).to_owned(), u64::from($type::$name.0)));)*
    };
}

/// All structures that are passed, and the constants that are used.
fn questions() -> Questions {
    let mut to = Questions::default();
    structure!(to, ze_command_list_desc_t { stype, pNext, commandQueueGroupOrdinal, flags });
    structure!(to, ze_command_queue_desc_t { stype, pNext, ordinal, index, flags, mode, priority });
    structure!(
        to,
        ze_command_queue_group_properties_t { stype, pNext, flags, maxMemoryFillPatternSize, numQueues }
    );
    structure!(to, ze_context_desc_t { stype, pNext, flags });
    structure!(
        to,
        ze_device_compute_properties_t {
            stype,
            pNext,
            maxTotalGroupSize,
            maxGroupSizeX,
            maxGroupSizeY,
            maxGroupSizeZ,
            maxGroupCountX,
            maxGroupCountY,
            maxGroupCountZ,
            maxSharedLocalMemory,
            numSubGroupSizes,
            subGroupSizes
        }
    );
    structure!(to, ze_device_mem_alloc_desc_t { stype, pNext, flags, ordinal });
    structure!(
        to,
        ze_device_memory_properties_t { stype, pNext, flags, maxClockRate, maxBusWidth, totalSize, name }
    );
    structure!(
        to,
        ze_device_module_properties_t {
            stype,
            pNext,
            spirvVersionSupported,
            flags,
            fp16flags,
            fp32flags,
            fp64flags,
            maxArgumentsSize,
            printfBufferSize,
            nativeKernelSupported
        }
    );
    structure!(
        to,
        ze_device_properties_t {
            stype,
            pNext,
            type_,
            vendorId,
            deviceId,
            flags,
            subdeviceId,
            coreClockRate,
            maxMemAllocSize,
            maxHardwareContexts,
            maxCommandQueuePriority,
            numThreadsPerEU,
            physicalEUSimdWidth,
            numEUsPerSubslice,
            numSubslicesPerSlice,
            numSlices,
            timerResolution,
            timestampValidBits,
            kernelTimestampValidBits,
            uuid,
            name
        }
    );
    structure!(to, ze_event_desc_t { stype, pNext, index, signal, wait });
    structure!(to, ze_event_pool_desc_t { stype, pNext, flags, count });
    structure!(to, ze_group_count_t { groupCountX, groupCountY, groupCountZ });
    structure!(to, ze_host_mem_alloc_desc_t { stype, pNext, flags });
    structure!(to, ze_kernel_desc_t { stype, pNext, flags, pKernelName });
    structure!(
        to,
        ze_kernel_properties_t {
            stype,
            pNext,
            numKernelArgs,
            requiredGroupSizeX,
            requiredGroupSizeY,
            requiredGroupSizeZ,
            requiredNumSubGroups,
            requiredSubgroupSize,
            maxSubgroupSize,
            maxNumSubgroups,
            localMemSize,
            privateMemSize,
            spillMemSize,
            uuid
        }
    );
    structure!(to, ze_memory_free_ext_desc_t { stype, pNext, freePolicy });
    structure!(
        to,
        ze_module_desc_t { stype, pNext, format, inputSize, pInputModule, pBuildFlags, pConstants }
    );
    structure!(to, ze_relaxed_allocation_limits_exp_desc_t { stype, pNext, flags });
    constants!(
        to,
        ze_structure_type_t {
            ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES,
            ZE_STRUCTURE_TYPE_CONTEXT_DESC,
            ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES,
            ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC,
            ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES,
            ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES,
            ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES,
            ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2,
            ZE_STRUCTURE_TYPE_EVENT_DESC,
            ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
            ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC,
            ZE_STRUCTURE_TYPE_KERNEL_DESC,
            ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES,
            ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC,
            ZE_STRUCTURE_TYPE_MODULE_DESC,
            ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC
        }
    );
    constants!(
        to,
        ze_result_t {
            ZE_RESULT_SUCCESS,
            ZE_RESULT_NOT_READY,
            ZE_RESULT_ERROR_DEVICE_LOST,
            ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
            ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
            ZE_RESULT_ERROR_MODULE_BUILD_FAILURE,
            ZE_RESULT_ERROR_UNINITIALIZED,
            ZE_RESULT_ERROR_UNSUPPORTED_VERSION,
            ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
            ZE_RESULT_ERROR_UNSUPPORTED_SIZE,
            ZE_RESULT_ERROR_INVALID_ARGUMENT,
            ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
            ZE_RESULT_ERROR_INVALID_KERNEL_NAME,
            ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION,
            ZE_RESULT_ERROR_UNKNOWN
        }
    );
    constants!(to, ze_command_queue_group_property_flag_t { ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE });
    constants!(to, ze_command_queue_mode_t { ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS });
    constants!(to, ze_device_type_t { ZE_DEVICE_TYPE_GPU });
    constants!(
        to,
        ze_driver_memory_free_policy_ext_flag_t { ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE }
    );
    constants!(to, ze_event_pool_flag_t { ZE_EVENT_POOL_FLAG_HOST_VISIBLE });
    constants!(to, ze_event_scope_flag_t { ZE_EVENT_SCOPE_FLAG_HOST });
    constants!(to, ze_init_flag_t { ZE_INIT_FLAG_GPU_ONLY });
    constants!(to, ze_module_format_t { ZE_MODULE_FORMAT_IL_SPIRV, ZE_MODULE_FORMAT_NATIVE });
    constants!(
        to,
        ze_relaxed_allocation_limits_exp_flag_t { ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE }
    );
    to
}

#[test]
fn structures_and_constants_are_those_of_the_header() {
    if !Path::new(HEADER).is_file() {
        let missing = format!("{HEADER} was not found (libze-dev has it)");
        assert!(std::env::var_os("GANTRY_REQUIRE_ZE").is_none(), "{missing}");
        println!("not tested: {missing}");
        return;
    }
    let questions = questions();
    assert!(questions.0.len() > 150);
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <level_zero/ze_api.h>\nint main(void) {\n",
    );
    for (question, _) in &questions.0 {
        // `type` is a keyword in Rust.
        let question = question.replace("type_)", "type)");
        writeln!(program, "    printf(\"%llu\\n\", (unsigned long long)({question}));")
            .expect("a string takes it");
    }
    program.push_str("}\n");
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (source, binary) = (folder.path().join("ask.c"), folder.path().join("ask"));
    std::fs::write(&source, program).expect("space");
    let built = Command::new("cc").arg("-o").arg(&binary).arg(&source).status().expect("cc is needed");
    assert!(built.success());
    let said = Command::new(&binary).output().expect("it starts").stdout;
    let said = String::from_utf8(said).expect("digits");
    assert_eq!(said.lines().count(), questions.0.len());
    for ((question, here), there) in questions.0.iter().zip(said.lines()) {
        assert_eq!(here.to_string(), there, "{question}");
    }
}

#[test]
fn every_function_is_looked_for_once_and_in_order() {
    let names: Vec<&str> = functions().collect();
    assert!(names.is_sorted() && names.len() > 40);
    let generated = include_str!("../src/bindings.rs");
    let looked_up = generated.matches("__library.get(").count();
    assert_eq!(looked_up, names.len());
    for name in &names {
        assert!(generated.contains(&format!("pub unsafe fn {name}(")), "{name} is not bound");
    }
    assert_eq!(generated.matches("pub unsafe fn ze").count(), names.len());
}

#[test]
fn a_machine_without_the_library_is_told_so() {
    match load() {
        Ok(_) => assert_eq!(load().err(), None),
        Err(error) => assert!(error.to_string().starts_with(LIBRARY), "{error}"),
    }
}
