// A step of Newton's method for y = 1 / sqrt(m): y times half of (3 - m y^2).
module newton_step (
    input wire clk,
    input wire signed [31:0] half,  // m / 2
    input wire signed [32:0] y,
    output wire signed [31:0] half_out,
    output wire signed [32:0] y_out
);
    localparam STEP = 3 * latency::PRODUCT + 1;

    wire signed [31:0] square, half_square, part;
    reg signed [30:0] correction;
    wire signed [32:0] y_correction;

    product #(.A(33), .B(33)) squared (.clk(clk), .a(y), .b(y), .out(square));
    delay #(.WIDTH(32), .DEPTH(latency::PRODUCT)) for_part (
        .clk(clk), .in(half), .out(half_square));
    product #(.LOW(31)) times_m (.clk(clk), .a(half_square), .b(square), .out(part));
    always @(posedge clk) correction <= 31'((32'sd3 <<< 28) - part);
    delay #(.WIDTH(33), .DEPTH(2 * latency::PRODUCT + 1)) for_correction (
        .clk(clk), .in(y), .out(y_correction));
    product #(.A(33), .B(31), .LOW(29), .OUT(33)) corrected (
        .clk(clk), .a(y_correction), .b(correction), .out(y_out));
    delay #(.WIDTH(32), .DEPTH(STEP - latency::PRODUCT)) for_next (
        .clk(clk), .in(half_square), .out(half_out));
endmodule
