#include "comm/mpi/messages.h"

#include <fmt/format.h>
#include <mpi.h>

#include <cstring>
#include <limits>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::comm::mpi {
namespace {

void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(fmt::format("{}: {}", call, std::string(text, static_cast<size_t>(length))));
}

// A handle is a pointer in Open MPI and an int in MPICH.
static_assert(sizeof(MPI_Request) <= sizeof(uint64_t));
uint64_t handle_of(MPI_Request request) {
    uint64_t handle = 0;
    std::memcpy(&handle, &request, sizeof request);
    return handle;
}
MPI_Request request_of(uint64_t handle) {
    MPI_Request request = MPI_REQUEST_NULL;
    std::memcpy(&request, &handle, sizeof request);
    return request;
}

int count_of(int64_t bytes) {
    if (bytes > std::numeric_limits<int>::max()) throw std::runtime_error(fmt::format("a message of {} bytes", bytes));
    return static_cast<int>(bytes);
}

class MpiWire final : public processes::Wire {
public:
    MpiWire() {
        // Never freed but by MPI_Finalize: a late message of a stopped job must not find another communicator in its place.
        check(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup");
        check(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
        for (MPI_Comm comm : {data_, control_}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        MPI_Comm_rank(data_, &process_);
        MPI_Comm_size(data_, &processes_);
        // A host is named by its first process.
        MPI_Comm host = MPI_COMM_NULL;
        check(MPI_Comm_split_type(data_, MPI_COMM_TYPE_SHARED, process_, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
        int *most = nullptr, known = 0;
        MPI_Comm_get_attr(data_, MPI_TAG_UB, &most, &known);
        if (known) most_tag_ = *most;
        int first = process_;
        check(MPI_Bcast(&first, 1, MPI_INT, 0, host), "MPI_Bcast");
        MPI_Comm_free(&host);
        host_of_.resize(static_cast<size_t>(processes_));
        check(MPI_Allgather(&first, 1, MPI_INT, host_of_.data(), 1, MPI_INT, data_), "MPI_Allgather");
    }

    ~MpiWire() override {  // control messages are small and leave by themselves
        for (Outgoing& out : outgoing_) MPI_Wait(&out.request, MPI_STATUS_IGNORE);
    }

    int process() const override { return process_; }
    int processes() const override { return processes_; }
    int host_of(int process) const override { return host_of_[static_cast<size_t>(process)]; }
    int most_tag() const override { return most_tag_; }

    Ticket send(int to, int tag, const void* data, int64_t bytes) override {
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Isend(data, count_of(bytes), MPI_BYTE, to, tag, data_, &request), "MPI_Isend");
        return {handle_of(request), false};
    }

    Ticket receive(int from, int tag, void* data, int64_t capacity_bytes) override {
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Irecv(data, count_of(capacity_bytes), MPI_BYTE, from, tag, data_, &request), "MPI_Irecv");
        return {handle_of(request), true};
    }

    bool done(Ticket& ticket) override {
        MPI_Request request = request_of(ticket.handle);
        int done = 0;
        const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        ticket.handle = handle_of(request);  // null once it is over, also with an error
        check(code, "MPI_Test");
        return done != 0;
    }

    void drop(Ticket ticket) override {
        MPI_Request request = request_of(ticket.handle);
        if (request == MPI_REQUEST_NULL) return;
        if (!ticket.receives) {
            MPI_Request_free(&request);
            return;
        }
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);  // at once, or when the message that has begun to arrive is there
    }

    void post(int to, std::string message) override {
        Outgoing& out = outgoing_.emplace_back();
        out.message = std::move(message);
        check(MPI_Isend(out.message.data(), count_of(static_cast<int64_t>(out.message.size())), MPI_BYTE, to, 0, control_,
                        &out.request),
              "MPI_Isend");
    }

    bool poll(int& from, std::string& message) override {
        outgoing_.remove_if([](Outgoing& out) {
            int done = 0;
            check(MPI_Test(&out.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
            return done != 0;
        });
        int found = 0, bytes = 0;
        MPI_Message matched = MPI_MESSAGE_NULL;
        MPI_Status status;
        check(MPI_Improbe(MPI_ANY_SOURCE, 0, control_, &found, &matched, &status), "MPI_Improbe");
        if (!found) return false;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        message.resize(static_cast<size_t>(bytes));
        check(MPI_Mrecv(message.data(), bytes, MPI_BYTE, &matched, MPI_STATUS_IGNORE), "MPI_Mrecv");
        from = status.MPI_SOURCE;
        return true;
    }

private:
    struct Outgoing {
        std::string message;
        MPI_Request request = MPI_REQUEST_NULL;
    };

    MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
    int process_ = 0, processes_ = 1;
    int most_tag_ = 32767;      // what MPI promises
    std::vector<int> host_of_;  // by process
    std::list<Outgoing> outgoing_;
};

}  // namespace

std::unique_ptr<processes::Wire> make_wire() { return std::make_unique<MpiWire>(); }

}  // namespace lockstep::comm::mpi
