"""The tables of `trace.sqlite`: names, columns and types of nsys's export schema 3.20, and constant rows."""

from __future__ import annotations

from perfharness.model import nsys_schema as schema

SCHEMA_VERSION = (3, 20, 3)
"""The export schema of nsys whose names are written here."""

_OPERATION = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
)

TABLES = {
    schema.TABLE_STRINGS: "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    schema.TABLE_NVTX: (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
        "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
        "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT"
    ),
    schema.TABLE_KERNEL: (
        f"{_OPERATION}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
        "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, "
        "gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
        "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
        "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
        "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER"
    ),
    schema.TABLE_MEMCPY: (
        f"{_OPERATION}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, "
        "dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, "
        "migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER"
    ),
    schema.TABLE_MEMSET: (
        f"{_OPERATION}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER"
    ),
    schema.TABLE_GRAPH: f"{_OPERATION}, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL",
    schema.TABLE_API: (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    schema.TABLE_SYNCHRONIZATION: (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": (
        "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, "
        "value TEXT NOT NULL"
    ),
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER, "
        "l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, "
        "pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor INTEGER, "
        "computeMinor INTEGER, smMajor INTEGER, smMinor INTEGER, threadsPerWarp INTEGER, asyncEngines INTEGER, "
        "maxWarpsPerSm INTEGER, maxBlocksPerSm INTEGER, maxRegistersPerSm INTEGER, maxShmemPerSm INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "ANALYSIS_DETAILS": (
        "globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL"
    ),
    "DIAGNOSTIC_EVENT": (
        "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, "
        "severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER"
    ),
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    schema.TABLE_PERFHARNESS: "name TEXT NOT NULL, value TEXT",
}

ENUMERATIONS: dict[str, dict[int, tuple[str, str]]] = {
    "ENUM_NSYS_EVENT_TYPE": {
        schema.NVTX_CATEGORY_EVENT: ("NvtxCategory", "NvtxCategory"),
        schema.NVTX_MARK_EVENT: ("NvtxMark", "NvtxMark"),
        schema.NVTX_PUSH_POP_RANGE: ("NvtxPushPopRange", "NvtxPushPopRange"),
        schema.NVTX_START_END_RANGE: ("NvtxStartEndRange", "NvtxStartEndRange"),
        schema.NVTX_DOMAIN_CREATE: ("NvtxDomainCreate", "NvtxDomainCreate"),
    },
    "ENUM_NSYS_EVENT_CLASS": {
        schema.EVENT_CLASS_RUNTIME: ("TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        schema.EVENT_CLASS_DRIVER: ("TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
    },
    "ENUM_CUDA_MEMCPY_OPER": {
        number: (f"CUDA_MEMCPY_KIND_{name}", label)
        for number, (name, label) in enumerate(
            [
                ("UNKNOWN", "Unknown"),
                ("HTOD", "Host-to-Device"),
                ("DTOH", "Device-to-Host"),
                ("HTOA", "Host-to-Array"),
                ("ATOH", "Array-to-Host"),
                ("ATOA", "Array-to-Array"),
                ("ATOD", "Array-to-Device"),
                ("DTOA", "Device-to-Array"),
                ("DTOD", "Device-to-Device"),
                ("HTOH", "Host-to-Host"),
                ("PTOP", "Peer-to-Peer"),
            ]
        )
    },
    "ENUM_CUDA_MEM_KIND": {
        number: (f"CUDA_MEMOPR_MEMORY_KIND_{label.upper().replace(' ', '_')}", label)
        for number, label in enumerate(
            ["Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"]
        )
    },
    "ENUM_CUPTI_SYNC_TYPE": {
        number: (f"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_{name}", label)
        for number, (name, label) in enumerate(
            [
                ("UNKNOWN", "Unknown"),
                ("EVENT_SYNCHRONIZE", "Event sync"),
                ("STREAM_WAIT_EVENT", "Stream wait sync"),
                ("STREAM_SYNCHRONIZE", "Stream sync"),
                ("CONTEXT_SYNCHRONIZE", "Context sync"),
            ]
        )
    },
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": {
        0: ("CUDA_KERNEL_LAUNCH_TYPE_UNKNOWN", "Unknown"),
        1: ("CUDA_KERNEL_LAUNCH_TYPE_REGULAR", "Regular"),
        2: ("CUDA_KERNEL_LAUNCH_TYPE_COOPERATIVE_SINGLE_DEVICE", "Coop Single Device"),
        3: ("CUDA_KERNEL_LAUNCH_TYPE_COOPERATIVE_MULTI_DEVICE", "Coop Multi Device"),
    },
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": {1: ("Info", "Info"), 2: ("Warning", "Warning"), 3: ("Error", "Error")},
}

MEMORY_KIND_UNKNOWN = 7
"""nsys counts CUPTI's memory kinds from 0 on, and puts unknown (CUPTI: 0) last."""
