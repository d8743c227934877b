// A sum of products as a value of its segment: high(acc << input_shift, mantissa) >> down.
module dequantise (
    input wire clk,
    input wire signed [31:0] acc,
    input wire signed [31:0] mantissa,
    input wire [4:0] down,
    input wire [4:0] input_shift,
    output wire signed [31:0] out
);
    localparam SCALED = latency::SHIFT + latency::PRODUCT;

    wire signed [31:0] full, mantissa_2, scaled;
    wire [4:0] down_8;

    shift_left widen (.clk(clk), .value(acc), .by(input_shift), .out(full));
    delay #(.WIDTH(32), .DEPTH(latency::SHIFT)) for_product (
        .clk(clk), .in(mantissa), .out(mantissa_2));
    product scale (.clk(clk), .a(full), .b(mantissa_2), .out(scaled));
    delay #(.WIDTH(5), .DEPTH(SCALED)) for_down (.clk(clk), .in(down), .out(down_8));
    shift_right align (.clk(clk), .value(scaled), .by(down_8), .out(out));
endmodule
