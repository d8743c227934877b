// The state machine around a pipelined loop: a cycle to enter it, a trip a cycle, and, after the
// last trip has left a pipeline of DEPTH stages, a cycle to see that it ended.
module loop_control #(
    parameter DEPTH = 0
) (
    input wire clk,
    input wire rst,
    input wire start,        // with trips, while idle
    input wire [15:0] trips,  // above 0
    output wire idle,
    output reg trip,         // a trip begins
    output reg last          // with trip: the last one
);
    reg [15:0] left;
    reg ended;
    reg busy;
    wire drained;

    assign idle = ~busy;
    delay #(.WIDTH(1), .DEPTH(DEPTH)) pipeline (.clk(clk), .in(trip & last), .out(drained));
    always @(posedge clk) begin
        if (rst) begin
            busy <= 1'b0;
            trip <= 1'b0;
            last <= 1'b0;
            ended <= 1'b0;
        end else begin
            if (start && idle) begin
                busy <= 1'b1;
                trip <= 1'b1;
                last <= trips == 16'd1;
            end else if (trip) begin
                trip <= ~last;
                last <= left == 16'd1;
            end
            ended <= drained;
            if (ended) busy <= 1'b0;
        end
        left <= start && idle ? trips - 16'd1 : left - 16'(trip);
    end
endmodule
