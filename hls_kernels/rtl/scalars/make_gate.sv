// What all gates of a row share (make_gate): the room of both peaks, and how a gate becomes a value
// in units of log2.
module make_gate (
    input wire clk,
    input wire [30:0] peak_gate,
    input wire [30:0] peak_up,
    input wire signed [31:0] exponent_gate,
    input wire signed [31:0] scale_mantissa,
    input wire signed [31:0] scale_exponent,
    output wire [4:0] room_gate,
    output wire [4:0] room_up,
    output wire signed [31:0] mantissa,
    output wire signed [31:0] limit,
    output wire signed [31:0] half,
    output wire [4:0] right,
    output wire [4:0] left,
    output wire keep,
    output wire lost
);
    localparam DONE = latency::TIMES + latency::MAKE_FIXED;
    localparam LOG2_E = 32'sd1549082005;  // log2(e) * 2^30
    localparam SCORE_BITS = 32'sd16;
    localparam VALUE_LIMIT = 5'd30;

    wire [4:0] gate_3, up_3;
    wire signed [31:0] exponent_7, log2_mantissa, log2_exponent;

    room_of room_of_gate (.clk(clk), .value(peak_gate), .room(gate_3));
    room_of room_of_up (.clk(clk), .value(peak_up), .room(up_3));
    delay #(.WIDTH(10), .DEPTH(DONE - latency::ROOM)) for_rooms (
        .clk(clk), .in({gate_3, up_3}), .out({room_gate, room_up}));

    times to_log2 (
        .clk(clk),
        .a_mantissa(scale_mantissa),
        .a_exponent(scale_exponent),
        .b_mantissa(LOG2_E),
        .b_exponent(-32'sd30),
        .out_mantissa(log2_mantissa),
        .out_exponent(log2_exponent)
    );
    delay #(.WIDTH(32), .DEPTH(latency::TIMES)) for_fixed (
        .clk(clk), .in(exponent_gate), .out(exponent_7));
    delay #(.WIDTH(32), .DEPTH(latency::MAKE_FIXED)) for_mantissa (
        .clk(clk), .in(log2_mantissa), .out(mantissa));
    make_fixed shifter (
        .clk(clk),
        .exponent(exponent_7),
        .scale_exponent(log2_exponent),
        .fraction_bits(SCORE_BITS),
        .limit_bits(VALUE_LIMIT),
        .limit(limit),
        .half(half),
        .right(right),
        .left(left),
        .keep(keep),
        .lost(lost)
    );
endmodule
