// How a row is brought to codes (make_quantiser): what its peak leaves free of 31 bits, the factor
// of its codes and their scale. All zero for a row of zeros.
module quantiser (
    input wire clk,
    input wire [30:0] peak,
    input wire signed [31:0] exponent,
    output wire [4:0] out_room,
    output wire [16:0] out_factor,
    output reg [31:0] out_mantissa,
    output reg signed [31:0] out_exponent
);
    localparam FACTOR_BITS = 30, DIVIDEND_BITS = 31;
    localparam AT_DIVISION = latency::ROOM + latency::SHIFT;
    localparam AT_SUM = AT_DIVISION + DIVIDEND_BITS;
    localparam DONE = AT_SUM + 2;

    // ---- the row's room, and its peak with 31 bits ----
    wire [4:0] room, room_done;
    wire [30:0] peak_3, full;
    reg zero;
    wire zero_done;

    room_of free (.clk(clk), .value(peak), .room(room));
    delay #(.WIDTH(31), .DEPTH(latency::ROOM)) for_room (.clk(clk), .in(peak), .out(peak_3));
    shift_left #(.WIDTH(31)) widen (.clk(clk), .value(peak_3), .by(room), .out(full));
    delay #(.WIDTH(1), .DEPTH(DONE - 2)) for_zero (.clk(clk), .in(zero), .out(zero_done));
    delay #(.WIDTH(5), .DEPTH(DONE - latency::ROOM)) room_out (
        .clk(clk), .in(room), .out(room_done));

    // ---- 127 * 2^23 over its upper bits; 128 / 127 of it ----
    wire [FACTOR_BITS-1:0] factor, factor_done;
    wire [DIVIDEND_BITS-1:0] part, full_sum;
    reg [31:0] mantissa;
    wire over = mantissa[31];
    wire unused = |factor_done[FACTOR_BITS-1:17];

    quotient #(.N(FACTOR_BITS), .D(15)) divide_factor (
        .clk(clk), .numerator(30'd127 << 23), .divisor(full[30:16]), .out(factor));
    quotient #(.N(DIVIDEND_BITS), .D(7)) divide_127 (
        .clk(clk), .numerator(full), .divisor(7'd127), .out(part));
    delay #(.WIDTH(DIVIDEND_BITS), .DEPTH(DIVIDEND_BITS)) for_sum (
        .clk(clk), .in(full), .out(full_sum));
    delay #(.WIDTH(FACTOR_BITS), .DEPTH(DONE - AT_DIVISION - FACTOR_BITS)) for_factor (
        .clk(clk), .in(factor), .out(factor_done));

    // ---- the exponent ----
    reg signed [31:0] below_7, below;
    wire signed [31:0] exponent_3, below_sum;

    delay #(.WIDTH(32), .DEPTH(latency::ROOM - 1)) for_exponent (
        .clk(clk), .in(below_7), .out(exponent_3));
    delay #(.WIDTH(32), .DEPTH(DONE - 1 - latency::ROOM - 1)) for_end (
        .clk(clk), .in(below), .out(below_sum));

    reg zero_end;
    always @(posedge clk) begin
        zero <= peak == 0;
        below_7 <= exponent - 32'sd7;
        below <= exponent_3 - 32'(room);
        mantissa <= 32'(full_sum) + 32'(part);
        out_mantissa <= zero_done ? 32'd0 : over ? {1'b0, mantissa[31:1]} : mantissa;
        out_exponent <= zero_done ? 32'sd0 : below_sum + 32'(over);
        zero_end <= zero_done;
    end
    assign out_room = zero_end ? 5'd0 : room_done;
    assign out_factor = zero_end ? 17'd0 : factor_done[16:0];
endmodule
