// The emulated card for Python, under the names that pyxrt gives to XRT's API of 2022 (2.13):
// `load_xclbin`, and no `hw_context`. Like pyxrt, `wait` does not release the interpreter's lock.
#include <pybind11/pybind11.h>

#include <cstring>

#include "csim_device.hpp"

namespace py = pybind11;
namespace csim = ecorl::xrt_csim;

namespace {

/// The figures that are texts; pyxrt answers texts only.
std::string information(const csim::Device& device, xrt::info::device key) {
    switch (key) {
        case xrt::info::device::bdf:
            return device.device.get_info<xrt::info::device::bdf>();
        case xrt::info::device::name:
            return device.device.get_info<xrt::info::device::name>();
        case xrt::info::device::electrical:
            return device.device.get_info<xrt::info::device::electrical>();
        default:
            return "NA";
    }
}

void write(csim::Buffer& buffer, const py::buffer& data, std::size_t seek) {
    const py::buffer_info info = data.request();
    buffer.bo.write(info.ptr, static_cast<std::size_t>(info.itemsize * info.size), seek);
}

py::bytearray read(csim::Buffer& buffer, std::size_t size, std::size_t skip) {
    py::bytearray result(nullptr, 0);
    PyByteArray_Resize(result.ptr(), static_cast<Py_ssize_t>(size));
    buffer.bo.read(PyByteArray_AsString(result.ptr()), size, skip);
    return result;
}

void add_states(py::module_& m) {
    py::enum_<xclBOSyncDirection>(m, "xclBOSyncDirection")
        .value("XCL_BO_SYNC_BO_TO_DEVICE", XCL_BO_SYNC_BO_TO_DEVICE)
        .value("XCL_BO_SYNC_BO_FROM_DEVICE", XCL_BO_SYNC_BO_FROM_DEVICE);
    py::enum_<ert_cmd_state>(m, "ert_cmd_state")
        .value("ERT_CMD_STATE_NEW", ERT_CMD_STATE_NEW)
        .value("ERT_CMD_STATE_QUEUED", ERT_CMD_STATE_QUEUED)
        .value("ERT_CMD_STATE_COMPLETED", ERT_CMD_STATE_COMPLETED)
        .value("ERT_CMD_STATE_ERROR", ERT_CMD_STATE_ERROR)
        .value("ERT_CMD_STATE_ABORT", ERT_CMD_STATE_ABORT)
        .value("ERT_CMD_STATE_SUBMITTED", ERT_CMD_STATE_SUBMITTED)
        .value("ERT_CMD_STATE_TIMEOUT", ERT_CMD_STATE_TIMEOUT)
        .value("ERT_CMD_STATE_NORESPONSE", ERT_CMD_STATE_NORESPONSE);
    py::enum_<xrt::info::device>(m, "xrt_info_device")
        .value("bdf", xrt::info::device::bdf)
        .value("name", xrt::info::device::name)
        .value("electrical", xrt::info::device::electrical);
}

void add_device(py::module_& m) {
    py::class_<xrt::uuid>(m, "uuid").def("to_string", &xrt::uuid::to_string);
    py::class_<xrt::xclbin>(m, "xclbin")
        .def(py::init<const std::string&>())
        .def("get_xsa_name", &xrt::xclbin::get_xsa_name)
        .def("get_uuid", &xrt::xclbin::get_uuid);
    py::class_<csim::Device>(m, "device")
        .def(py::init<unsigned>())
        .def("load_xclbin", [](csim::Device& device,
                               const std::string& path) { return device.load(xrt::xclbin(path)); })
        .def("load_xclbin", &csim::Device::load)
        .def("get_xclbin_uuid",
             [](const csim::Device& device) { return device.device.get_xclbin_uuid(); })
        .def("get_info", &information);
}

void add_buffer(py::module_& m) {
    py::class_<csim::Buffer> bo(m, "bo");
    py::enum_<xrt::bo::flags>(bo, "flags")
        .value("normal", xrt::bo::flags::normal)
        .value("cacheable", xrt::bo::flags::cacheable)
        .value("device_only", xrt::bo::flags::device_only)
        .value("host_only", xrt::bo::flags::host_only)
        .export_values();
    bo.def(py::init<const csim::Device&, std::size_t, xrt::bo::flags, unsigned>())
        .def(py::init<const csim::Buffer&, std::size_t, std::size_t>())
        .def("write", &write)
        .def("read", &read)
        .def("sync", &csim::Buffer::sync)
        .def("map",
             [](csim::Buffer& buffer) {
                 return py::memoryview::from_memory(buffer.bo.map(),
                                                    static_cast<py::ssize_t>(buffer.bo.size()));
             })
        .def("size", [](const csim::Buffer& buffer) { return buffer.bo.size(); })
        .def("address", [](const csim::Buffer& buffer) { return buffer.bo.address(); });
}

void add_kernel(py::module_& m) {
    py::class_<csim::Kernel> kernel(m, "kernel");
    py::enum_<xrt::kernel::cu_access_mode>(kernel, "cu_access_mode")
        .value("exclusive", xrt::kernel::cu_access_mode::exclusive)
        .value("shared", xrt::kernel::cu_access_mode::shared)
        .export_values();
    kernel
        .def(py::init<const csim::Device&, const xrt::uuid&, const std::string&,
                      xrt::kernel::cu_access_mode>(),
             py::arg(), py::arg(), py::arg(), py::arg() = xrt::kernel::cu_access_mode::shared)
        .def("group_id", [](const csim::Kernel& k, int index) { return k.kernel.group_id(index); });
    using set_buffer = void (csim::Run::*)(int, const csim::Buffer&);
    using set_value = void (csim::Run::*)(int, int);
    py::class_<csim::Run>(m, "run")
        .def(py::init<const csim::Kernel&>())
        .def("set_arg", static_cast<set_buffer>(&csim::Run::set_argument))
        .def("set_arg", static_cast<set_value>(&csim::Run::set_argument))
        .def("start", &csim::Run::start)
        .def("wait", [](csim::Run& run) { return run.wait(0); })
        .def("wait", &csim::Run::wait)
        .def("state", &csim::Run::state);
}

}  // namespace

PYBIND11_MODULE(ecorl_xrt_csim, m) {
    m.doc() = "pyxrt's names over XRT's noop driver, computing by the C-simulation";
    m.attr("is_emulation") = true;
    add_states(m);
    add_device(m);
    add_buffer(m);
    add_kernel(m);
}
