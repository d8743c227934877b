// A value as a code: its upper 16 bits after a left shift by room, times the row's factor, rounded.
module quantise (
    input wire clk,
    input wire signed [31:0] value,
    input wire [4:0] room,
    input wire signed [16:0] factor,
    output wire signed [7:0] code
);
    wire signed [31:0] full;
    wire signed [16:0] factor_2;
    wire signed [47:0] rounded;
    wire unused = |{full[15:0], rounded[47:31], rounded[22:0]};

    shift_left widen (.clk(clk), .value(value), .by(room), .out(full));
    delay #(.WIDTH(17), .DEPTH(latency::SHIFT)) for_product (
        .clk(clk), .in(factor), .out(factor_2));
    dsp_product #(.A(17), .B(16)) scale (
        .clk(clk), .a(factor_2), .b(full[31:16]), .addend(48'd1 << 22), .result(rounded));
    assign code = rounded[30:23];
endmodule
